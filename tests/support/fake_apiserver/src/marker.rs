//! A Service that shows how far a proxy has come.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use shunt_testbed::{EndpointSlice, Origin, Protocol, Service, eventually};

use crate::object::parse;

const PODS: [(&str, &str, &str); 2] =
    [("pod-1", "10.244.0.11", "fd00:244::11"), ("pod-2", "10.244.0.12", "fd00:244::12")];

/// A Service and its slices, changed now, come by the same ways as all that was changed before them.
#[derive(Debug, Default)]
pub struct Marker(Cell<u16>);

impl Marker {
    /// Its name, the last one of all.
    pub const NAME: &str = "zz-marker";

    /// Returns its objects with another port and endpoint than before. Hints show the zone.
    pub fn next(&self, zone: Option<&str>) -> Vec<Value> {
        let mark = self.0.get() + 1;
        self.0.set(mark);
        let service = Service::new(Self::NAME)
            .spec("ipFamilyPolicy: RequireDualStack")
            .cluster_ips(&["10.96.255.1", "fd00:96::ff01"])
            .port("a", Protocol::Tcp, 1000 + mark);
        let fields = |zone: &str| {
            format!("conditions: {{ready: true}}, hints: {{forZones: [{{name: {zone:?}}}]}}")
        };
        let slice = |slice: EndpointSlice, ips: [&str; 2]| {
            let slice = slice.port("a", Protocol::Tcp, 8080);
            let (here, elsewhere) = (ips[usize::from(mark % 2)], ips[usize::from((mark + 1) % 2)]);
            match zone {
                None => slice.endpoint(here, "conditions: {ready: true}"),
                Some(zone) => {
                    slice.endpoint(here, &fields(zone)).endpoint(elsewhere, &fields("elsewhere"))
                }
            }
        };
        let v4 = slice(EndpointSlice::v4(Self::NAME), PODS.map(|(_, v4, _)| v4));
        let v6 = slice(EndpointSlice::v6(Self::NAME), PODS.map(|(.., v6)| v6));
        parse(&format!("{service}{v4}{v6}")).unwrap_or_default()
    }

    /// Waits until packets from there reach the endpoint that it has now, and no other.
    pub fn wait(&self, from: Origin<'_>) -> Result<()> {
        let mark = self.0.get();
        let (expected, ..) = PODS[usize::from(mark % 2)];
        for ip in ["10.96.255.1", "[fd00:96::ff01]"] {
            let to = format!("{ip}:{}", 1000 + mark);
            let probe = from.tcp(&to);
            eventually(format_args!("the proxy does not follow: {to} is not {expected}"), || {
                // Enough that a second endpoint would show.
                let tally = probe.tally(16, Duration::from_millis(500))?;
                let own = |server: &&str| server.split(':').next() == Some(expected);
                let is_so = tally.lost() == 0 && tally.by_server().keys().all(own);
                Ok(is_so.then_some(()))
            })?;
        }
        Ok(())
    }
}
