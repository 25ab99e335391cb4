//! Other options at run time: the kernel ends up as after a fresh start with them, in one step.

#![allow(clippy::expect_used, reason = "the constants of a test are right")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family, Node, TrafficPolicy};
use shunt_core::plan::{DetectLocal, NodePortAddresses, Options};
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

fn cluster() -> Vec<Change> {
    let mut changes = vec![
        Change::node(Node {
            name: NODE.into(),
            addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
            pod_cidrs: vec!["10.244.0.0/24".parse().expect("a prefix")],
            zone: None,
            eligible: true,
        }),
        Change::InterfaceAddresses(
            ["127.0.0.1", "::1", "192.0.2.1", "198.18.0.1", "2001:db8::1"].map(ip).into(),
        ),
    ];
    for n in 1..6 {
        let mut service = service(n);
        if n % 2 == 0 {
            service.external_policy = TrafficPolicy::Local;
        }
        changes.push(Change::service(service));
        let endpoints: Vec<u16> = (0..n).map(|e| n * 100 + e).collect();
        changes.push(Change::slice(slice(n, Family::V4, &endpoints)));
        changes.push(Change::slice(slice(n, Family::V6, &endpoints)));
    }
    changes
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn open(ns: &Netns, options: Options, node: &str) -> Result<Dataplane> {
    let mut dataplane = ns.run(|| Ok(Dataplane::open(options, node, Ownership::Own)?))?;
    dataplane.apply_all(cluster());
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}

#[test]
fn each_change_is_one_transaction_to_what_a_fresh_start_would_make() -> Result<()> {
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().expect("a prefix")).collect();
    let default = Options::default;
    let ns = Netns::new()?;
    let mut dataplane = open(&ns, default(), NODE)?;
    dataplane.sync()?;
    for (options, node) in [
        (Options { masquerade_bit: 0, ..default() }, NODE),
        (Options { masquerade_bit: 31, masquerade_all: true, ..default() }, NODE),
        (Options { detect_local: DetectLocal::NodeCidr, ..default() }, NODE),
        (
            Options {
                detect_local: DetectLocal::ClusterCidr(nets(&["fd00:244::/64"])),
                ..default()
            },
            NODE,
        ),
        (Options { detect_local: DetectLocal::BridgeInterface("cni0".into()), ..default() }, NODE),
        (
            Options {
                detect_local: DetectLocal::InterfaceNamePrefix("veth".into()),
                masquerade_bit: 3,
                ..default()
            },
            NODE,
        ),
        (
            Options {
                node_port_addresses: NodePortAddresses::Cidrs(nets(&["0.0.0.0/0"])),
                ..default()
            },
            NODE,
        ),
        (
            Options {
                node_port_addresses: NodePortAddresses::Cidrs(nets(&["198.18.0.0/15"])),
                ..default()
            },
            NODE,
        ),
        (Options { node_address: Some(ip("198.18.0.1")), ..default() }, NODE),
        (Options { ignore_external_ips: true, ..default() }, NODE),
        // Another node: other endpoints are local.
        (default(), "node-2"),
        (default(), NODE),
    ] {
        let said = format!("{options:?} {node}");
        let generation = ns.nft_generation()?;
        dataplane.configure(options.clone(), node);
        let report = dataplane.sync()?;
        assert!(report.is_some(), "nothing was written for {said}");
        assert_eq!(ns.nft_generation()?, generation + 1, "{said}");
        assert_eq!(dataplane.sync()?, None, "{said}");

        // Chains on demand that nobody needs any more go later.
        while dataplane.has_unused_chains() {
            dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
        }
        let fresh = Netns::new()?;
        open(&fresh, options, node)?.sync()?;
        assert_eq!(ns.ruleset()?, fresh.ruleset()?, "{said}");
    }
    Ok(())
}

#[test]
fn a_new_bit_of_the_mark_costs_rules_and_no_elements() -> Result<()> {
    let ns = Netns::new()?;
    let mut dataplane = open(&ns, Options::default(), NODE)?;
    dataplane.sync()?;
    dataplane.configure(Options { masquerade_bit: 5, ..Options::default() }, NODE);
    let report = dataplane.sync()?.expect("other rules");
    assert_eq!((report.added, report.deleted), (0, 0));
    let text = ns.output("nft", &["list", "ruleset"])?;
    assert!(text.contains("0x00000020") && !text.contains("0x00004000"), "{text}");
    Ok(())
}

#[test]
fn the_same_options_write_nothing() -> Result<()> {
    let ns = Netns::new()?;
    let mut dataplane = open(&ns, Options::default(), NODE)?;
    dataplane.sync()?;
    dataplane.configure(Options::default(), NODE);
    assert_eq!(dataplane.sync()?, None);
    Ok(())
}
