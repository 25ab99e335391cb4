//! A pool that shrinks and grows: each first packet of a connection finds a live endpoint, also if it
//! meets a commit.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shunt_testbed::{Host, Outcome, Protocol, probe};

use crate::world::{World, slices, web};

/// Less than the second after which a lost SYN would be sent again, and hide the loss.
const PATIENCE: Duration = Duration::from_millis(900);
/// So many at least; `SHUNT_SOAK=n` asks for n times as many of both.
const CONNECTIONS: usize = 20_000;
const TRANSACTIONS: usize = 500;
const AT_MOST: Duration = Duration::from_secs(120);
/// A namespace uses that many source ports one after the other. Behind each round comes another source
/// address, so that each connection is a new one to connection tracking.
const ROUND: usize = 32_000;
const ADDRESSES: u8 = 20;

/// Connects until it is over; returns how often, and what failed.
fn hammer(
    host: &Host,
    protocol: Protocol,
    to: &str,
    sources: &[IpAddr],
    (over, connections): (&AtomicBool, &AtomicUsize),
) -> Result<Vec<String>> {
    let to = to.parse()?;
    host.run(|| {
        let mut failed = Vec::new();
        let mut own = 0;
        while !over.load(Ordering::Relaxed) {
            let source = sources[own / ROUND % sources.len()];
            match probe(protocol, Some(source), to, PATIENCE)? {
                Outcome::Reached { .. } => {}
                // The answer finds no entry: that of a removed endpoint is deleted, as it must be.
                Outcome::Dropped if protocol == Protocol::Udp => {}
                other => failed.push(format!("{source} to {to}/{protocol}: {other}")),
            }
            own += 1;
            connections.fetch_add(1, Ordering::Relaxed);
        }
        Ok(failed)
    })
}

#[test]
fn no_first_packet_is_refused_while_its_pool_shrinks_and_grows() -> Result<()> {
    let world = World::new()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    world.manifests.write("web.yaml", web())?;
    world.manifests.write("slices.yaml", slices("web", &pods))?;
    let client = &world.lab.client;
    let sources: Vec<IpAddr> = (0..ADDRESSES).map(|n| [192, 0, 2, 120 + n].into()).collect();
    let addresses = sources.iter().map(|ip| format!("addr add {ip}/24 dev eth0\n"));
    client.ip(&addresses.collect::<String>())?;
    let agent = world.start()?;
    // Finished flows make room in the table at once.
    world.lab.node.sysctl(&[
        ("net/netfilter/nf_conntrack_udp_timeout", "1"),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", "1"),
    ])?;

    let (over, connections) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    let failed = thread::scope(|scope| -> Result<Vec<String>> {
        let hammers = [
            (client, Protocol::Udp, "10.96.0.10:80", sources.clone()),
            (client, Protocol::Tcp, "203.0.113.10:80", sources.clone()),
            (
                &world.lab.pod2,
                Protocol::Udp,
                "[fd00:96::10]:80",
                vec![world.lab.pod2.ipv6[0].into()],
            ),
        ];
        let hammers = hammers.map(|(host, protocol, to, sources)| {
            scope.spawn(move || hammer(host, protocol, to, &sources, (over, connections)))
        });
        let changed = shrink_and_grow(&world, &pods, connections);
        over.store(true, Ordering::Relaxed);
        let mut failed = Vec::new();
        for hammer in hammers {
            failed.extend(hammer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        changed?;
        Ok(failed)
    })?;
    assert!(
        failed.is_empty(),
        "{} failures, among them {:#?}",
        failed.len(),
        &failed[..failed.len().min(10)]
    );
    agent.stop()
}

fn shrink_and_grow(world: &World, pods: &[&Host; 3], connections: &AtomicUsize) -> Result<()> {
    let times = std::env::var("SHUNT_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1_u32);
    let wanted = (CONNECTIONS * times as usize, TRANSACTIONS * times as usize);
    let start = Instant::now();
    let generation = world.lab.node.nft_generation()?;
    for round in 0.. {
        let endpoints = match round % 6 {
            0 => &pods[..1],
            1 => &pods[..3],
            2 => &pods[1..],
            3 => &pods[2..],
            4 => &pods[..2],
            _ => &pods[1..2],
        };
        world.manifests.write("slices.yaml", slices("web", endpoints))?;
        let transactions = (world.lab.node.nft_generation()? - generation) as usize;
        let connected = connections.load(Ordering::Relaxed);
        if connected >= wanted.0 && transactions >= wanted.1 {
            break;
        }
        ensure!(
            start.elapsed() < AT_MOST * times,
            "only {transactions} transactions and {connected} connections"
        );
    }
    Ok(())
}
