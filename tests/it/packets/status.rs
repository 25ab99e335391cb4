//! `shunt status`: what a person on the node is told, and first what is wrong.

use std::collections::VecDeque;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use shunt_testbed::{Agent, eventually};

use crate::world::{World, run_shunt, status_json};

/// An agent that has told commands of its first sync.
fn start(world: &World) -> Result<Agent> {
    let agent = world.start()?;
    eventually("a sync in the status", || {
        let status = status_json(&world.lab.node);
        Ok(status.is_ok_and(|status| status["lastSync"].is_object()).then_some(()))
    })?;
    Ok(agent)
}

/// Any process of the node's network can connect, as often as it likes.
#[test]
fn clients_that_prove_nothing_delay_no_command() -> Result<()> {
    let world = World::with_web()?;
    let _agent = start(&world)?;
    let name = world.lab.node.run(abstract_socket)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = || {
            world.lab.node.run(|| {
                let mut latest = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    let address = SocketAddr::from_abstract_name(&name)?;
                    let mut stream = UnixStream::connect_addr(&address)?;
                    // The beginning of a question that never ends, if the agent listens at all.
                    let _ = stream.write_all(b"{");
                    latest.push_back(stream);
                    latest.drain(..latest.len().saturating_sub(150));
                }
                Ok(())
            })
        };
        let floods = [scope.spawn(flood), scope.spawn(flood)];
        let commands = || {
            for _ in 0..10 {
                let output = run_shunt(&world.lab.node, &["status"])?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        };
        let result = commands();
        is_over.store(true, Ordering::Relaxed);
        for flood in floods {
            flood.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        result
    })
}

/// Returns the name of the agent's socket in the network namespace of this thread.
fn abstract_socket() -> Result<String> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let name = sockets.split_whitespace().find_map(|word| word.strip_prefix("@shunt/"));
    Ok(format!("shunt/{}", name.context("no socket of shunt")?))
}
