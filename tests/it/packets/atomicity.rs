//! A packet sees the old rules or the new ones, never something between and never nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shunt_testbed::{Host, Protocol, Traffic};

use crate::world::{World, cluster_ip_service, manifest};

/// Services that are rewritten.
pub(crate) const OTHERS: u8 = 40;
// The storm goes on until there has been enough of everything; too long and something is stuck.
const AT_LEAST: Duration = Duration::from_secs(5);
const AT_MOST: Duration = Duration::from_secs(60);
const PROBES: usize = 2_000;
const TRANSACTIONS: u32 = 100;

#[test]
fn an_untouched_service_never_fails_while_others_change() -> Result<()> {
    let world = World::with_web()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    for number in 0..OTHERS {
        world.manifests.write(&file(number), other_service(number, &pods, 0))?;
    }
    let agent = world.start()?;

    while_asking(&world, |traffic| rewrite_others(&world, &pods, traffic))?;
    agent.stop()
}

/// Asks the servers of [`web`](crate::world::web) without end while something is done; fails if they
/// could not be reached once.
pub(crate) fn while_asking(world: &World, work: impl FnOnce(&Traffic) -> Result<()>) -> Result<()> {
    let flows = [
        (&world.lab.client, Protocol::Tcp, "10.96.0.10:80"),
        (&world.lab.client, Protocol::Udp, "203.0.113.10:80"),
        (&world.lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
        (&world.lab.node, Protocol::Sctp, "192.0.2.10:30080"),
    ];
    let traffic = Traffic::start(flows, Duration::ZERO)?;
    work(&traffic)?;
    traffic.stop().all()
}

/// Changes addresses and endpoints, removes and adds, as fast as files can be written.
fn rewrite_others(world: &World, pods: &[&Host; 3], traffic: &Traffic) -> Result<()> {
    let start = Instant::now();
    let generation = world.lab.node.nft_generation()?;
    for round in 1.. {
        for number in 0..OTHERS {
            if (round + usize::from(number)) % 7 == 0 {
                world.manifests.remove(&file(number))?;
            }
            world.manifests.write(&file(number), other_service(number, pods, round))?;
        }
        let transactions = world.lab.node.nft_generation()? - generation;
        let probes = traffic.delivered().new;
        let enough = transactions >= TRANSACTIONS && probes >= PROBES;
        if enough && start.elapsed() >= AT_LEAST {
            break;
        }
        ensure!(
            start.elapsed() < AT_MOST,
            "only {transactions} transactions and {probes} probes in {AT_MOST:?}"
        );
    }
    Ok(())
}

/// Every round gives it other endpoints, every second round another address.
pub(crate) fn other_service(number: u8, pods: &[&Host; 3], round: usize) -> String {
    let third = 96 + round / 2 % 2;
    let ips = [format!("10.{third}.1.{number}"), format!("fd00:96::{third}:{number:x}")];
    let name = format!("other-{number}");
    let service = cluster_ip_service(&name, &[&ips[0], &ips[1]]);
    manifest(&service, &name, &pods[..round % 4])
}

pub(crate) fn file(number: u8) -> String {
    format!("other-{number}.yaml")
}
