//! Clients of Services.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_testbed::{Host, Protocol, Service, probe};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The name of the port of all Services.
pub(super) const PORT_NAME: &str = "http";

/// A Service: namespace, name, ClusterIP, port, and the mean pause between two connections.
pub(super) struct Load {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    pub(super) address: &'static str,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) pause: Duration,
}

/// Returns a Service that clients reach with TCP.
pub(super) const fn load(
    namespace: &'static str,
    name: &'static str,
    address: &'static str,
    port: u16,
    pause: u64,
) -> Load {
    let pause = Duration::from_millis(pause);
    Load { namespace, name, address, protocol: Protocol::Tcp, port, pause }
}

impl Load {
    /// Returns the Service.
    pub(super) fn service(&self) -> Service {
        Service::new(self.name).namespace(self.namespace).cluster_ips(&[self.address]).port(
            PORT_NAME,
            self.protocol,
            self.port,
        )
    }

    /// Connects from a host until this is enough, at a rate that rises and falls.
    pub(super) fn send_until(&self, client: &Host, enough: &AtomicBool) -> Result<()> {
        let to = format!("{}:{}", self.address, self.port).parse()?;
        let began = Instant::now();
        client.run(|| {
            while !enough.load(Ordering::Relaxed) {
                probe(self.protocol, None, to, PATIENCE)?;
                let wave = (began.elapsed().as_secs_f64() / 7.0 + f64::from(self.port)).sin();
                thread::sleep(self.pause.mul_f64(1.0 + 0.5 * wave));
            }
            Ok(())
        })
    }
}
