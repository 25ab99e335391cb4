//! Node ports on localhost, whose listeners belong to the agent.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shunt_testbed::Agent;

use crate::world::{CLUSTER_IP, PODS, Version, World};

const SETTINGS: &str = "nodePortAddresses: [primary, localhost]\n";
const NODE_PORT: &str = "127.0.0.1:30080";
const PATIENCE: Duration = Duration::from_secs(30);

/// If both versions have the proxy, an agent that waits gets the listeners of the other version, and no
/// connection is refused. A version without the proxy rejects the setting by its name.
pub(crate) fn node_ports() -> Result<()> {
    let world = World::new("")?;
    match world.agent(Version::Previous, SETTINGS)?.start() {
        Ok(agent) => handed_over(&world, agent),
        Err(error) => {
            let error = format!("{error:#}");
            ensure!(error.contains("nodePortAddresses"), "{error}");
            come_and_go(&world)
        }
    }
}

/// The ports are open as long as the version with the proxy runs.
fn come_and_go(world: &World) -> Result<()> {
    for version in Version::THERE_AND_BACK {
        let settings = if version == Version::Current { SETTINGS } else { "" };
        let agent = world.agent(version, settings)?.start()?;
        let node = world.lab.from(&world.lab.node).tcp(NODE_PORT).eventually();
        match version {
            Version::Current => _ = node.reaches(&PODS),
            Version::Previous => node.refused(),
        }
        world.lab.from(&world.lab.client).tcp(CLUSTER_IP).reaches(&PODS);
        agent.stop()?;
    }
    Ok(())
}

fn handed_over(world: &World, mut agent: Agent) -> Result<()> {
    world.lab.from(&world.lab.node).tcp(NODE_PORT).eventually().reaches(&PODS);
    let over = AtomicBool::new(false);
    let (served, refused, cut) = thread::scope(|scope| -> Result<_> {
        let client = scope.spawn(|| connect_until(world, &over));
        let replaced = (|| {
            for version in &Version::THERE_AND_BACK[1..] {
                let next = world.agent(*version, SETTINGS)?.spawn()?;
                // The agent that ends has seen the one that waits.
                agent.wait_for_log(&["another shunt waits until this one ends"])?;
                std::mem::replace(&mut agent, next).stop()?;
                agent.wait_ready()?;
                world.lab.from(&world.lab.node).tcp(NODE_PORT).eventually().reaches(&PODS);
            }
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        let counts = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
        replaced.and(counts)
    })?;
    // A connection ends with its agent, and one at most is open.
    ensure!(served > 0 && refused == 0 && cut <= 3, "{served} {refused} {cut}");
    agent.stop()
}

/// Connects all the time. Returns how many connections were answered, refused, and cut.
fn connect_until(world: &World, over: &AtomicBool) -> Result<(usize, usize, usize)> {
    let to: SocketAddr = NODE_PORT.parse()?;
    world.lab.node.run(|| {
        let (mut served, mut refused, mut cut) = (0, 0, 0);
        while !over.load(Ordering::Relaxed) {
            let mut stream = match TcpStream::connect_timeout(&to, PATIENCE) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    refused += 1;
                    continue;
                }
                Err(error) => return Err(error).context("cannot connect"),
            };
            stream.set_read_timeout(Some(PATIENCE))?;
            match stream.read(&mut [0; 64]) {
                Ok(1..) => served += 1,
                Ok(0) => cut += 1,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => cut += 1,
                Err(error) => return Err(error).context("no answer"),
            }
        }
        Ok((served, refused, cut))
    })
}
