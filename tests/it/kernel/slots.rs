//! Hash tables in the kernel: how many elements they take, and what a step of their size costs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nfnetlink::nft::Socket;
use shunt::dataplane::compare;
use shunt_core::model::{Balancing, Change, EndpointPort, Family, Service, ServicePort};
use shunt_fake_nftables::{service, slice};
use shunt_testbed::Netns;

use super::cluster::dataplane;

fn hashed() -> Change {
    Change::service(Service { balancing: Some(Balancing::SourceHash), ..service(1) })
}

fn endpoints(count: u16) -> Change {
    Change::slice(slice(1, Family::V4, &(1..=count).collect::<Vec<_>>()))
}

/// Each port would have 16 381 slots for 201 endpoints, together 983 000.
#[test]
fn sixty_ports_with_hash_tables_have_less_than_100_000_elements() -> Result<()> {
    const PORTS: u16 = 60;
    const ENDPOINTS: u16 = 201;
    let ns = Netns::new()?;
    let mut wide = service(1);
    let name = |port: u16| -> std::sync::Arc<str> { format!("port-{port}").into() };
    let template = wide.ports.remove(0);
    let ports = |port| ServicePort { name: name(port), port, node_port: None, ..template.clone() };
    wide.ports = (1..=PORTS).map(ports).collect();
    wide.external_ips.clear();
    wide.balancing = Some(Balancing::SourceHash);
    let mut backends = slice(1, Family::V4, &(1..=ENDPOINTS).collect::<Vec<_>>());
    let port = |port| EndpointPort { name: name(port), protocol: template.protocol, port };
    backends.ports = (1..=PORTS).map(port).collect();
    let mut dataplane = dataplane(&ns, vec![Change::service(wide), Change::slice(backends)])?;
    dataplane.sync()?;

    let listed = ns.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
    let slots = listed.matches(" . tcp . ").count();
    assert_eq!(slots, usize::from(PORTS) * 1_021);
    // "10.96.0.1 . tcp . 7 . 0 : 10.244.0.3 . 7"
    let elements = listed.split(&[',', '{', '}']).filter_map(|it| it.split_once(" : "));
    let served: BTreeSet<&str> =
        elements.map(|(_, backend)| backend.trim()).filter(|it| it.starts_with("10.")).collect();
    assert_eq!(served.len(), usize::from(PORTS) * usize::from(ENDPOINTS));
    assert_eq!(dataplane.snapshot().oversized.len(), 0);
    Ok(())
}

/// An autoscaler goes to and fro over the step between 200 and 201 endpoints.
#[test]
fn tables_keep_their_size_just_below_a_step() -> Result<()> {
    const FRONTENDS: usize = 3;
    let ns = Netns::new()?;
    let mut agent = dataplane(&ns, vec![hashed(), endpoints(200)])?;
    agent.sync()?;
    // Of ClusterIP and ExternalIP.
    let slots = || -> Result<usize> {
        let listed = ns.output("nft", &["list", "map", "ip", "shunt", "endpoints"])?;
        Ok(listed.matches(" . tcp . ").count())
    };
    assert_eq!(slots()?, 2 * 1_021);
    agent.apply(endpoints(201));
    agent.sync()?;
    assert_eq!(slots()?, 2 * 16_381);
    for count in [200, 201, 200] {
        agent.apply(endpoints(count));
        let report = agent.sync()?.context("nothing was written")?;
        // An endpoint of 201 has 82 slots of each table.
        assert!(report.added < FRONTENDS * 16_381 / 20, "{count}: {report:?}");
        assert_eq!(slots()?, 2 * 16_381);
    }
    let places = compare(&mut ns.run(|| Ok(Socket::open()?))?, agent.desired())?;
    assert_eq!(places, [], "the plan has tables of this size");

    // The next agent finds the larger tables, and leaves them.
    drop(agent);
    let generation = ns.nft_generation()?;
    let mut agent = dataplane(&ns, vec![hashed(), endpoints(200)])?;
    assert_eq!(agent.sync()?, None);
    assert_eq!(ns.nft_generation()?, generation);
    agent.apply(endpoints(121));
    agent.sync()?;
    assert_eq!(slots()?, 2 * 16_381);
    agent.apply(endpoints(120));
    agent.sync()?;
    agent.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
    assert_eq!(slots()?, 2 * 1_021);
    Ok(())
}
