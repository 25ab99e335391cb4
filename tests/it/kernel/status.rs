//! What the kernel refuses is the first thing that `shunt status` tells.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use nfnetlink::nft::Socket;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use shunt::dataplane::{Dataplane, Ownership};
use shunt::flows::Unswept;
use shunt::serve::http::{Health, HealthSource, UnboundPorts};
use shunt::serve::loopback::LoopbackReport;
use shunt::serve::metrics::Counter;
use shunt::serve::presence::Presence;
use shunt::serve::query::{self, Answer};
use shunt::serve::status::{AgentState, Following, Sources};
use shunt_core::model::{Change, Family};
use shunt_core::plan::Options;
use shunt_fake_nftables::{NODE, service, slice};
use shunt_testbed::Netns;

use super::faults::Faults;
use crate::world::{status_json, status_text};

fn health() -> HealthSource {
    Arc::new(|| Health {
        last_updated: Some(SystemTime::now()),
        waiting: None,
        unswept: None,
        patience: Duration::from_secs(60),
        node_eligible: true,
        families: Family::ALL.to_vec(),
    })
}

#[test]
fn a_refused_service_port_is_told_with_the_reason_and_the_next_try() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share)?;
    let known = AgentState::default();
    known.follow(NODE, Following::Manifests(vec!["/etc/shunt".into()]));
    let teller = known.clone().teller(Sources {
        health: health(),
        unswept: Unswept::default(),
        unbound: UnboundPorts::default(),
        taken_node_ports: Box::new(shunt::taken_ports::Report::default),
        loopback: Box::new(LoopbackReport::default),
        lost_log_lines: Counter::default(),
    });
    let presence = ns.run(|| Ok(Presence::take()?))?.expect("no other agent");
    let own = std::fs::File::open(ns.path())?;
    // Ends with the process, as the agent's does.
    std::thread::spawn(move || -> Result<()> {
        setns(own, CloneFlags::CLONE_NEWNET)?;
        let answer = move |_: &_| Answer::Status(Box::new(teller()));
        Ok(query::serve(presence.listener, answer)?)
    });

    faults.refuse(|refusal| {
        let it = refusal.object == "service-ips"
            && refusal.keys.iter().any(|key| key.starts_with(&[10, 96, 0, 7]));
        it.then_some(Errno::ENFILE)
    });
    for n in [1, 7] {
        dataplane.apply(Change::service(service(n)));
        dataplane.apply(Change::slice(slice(n, Family::V4, &[n * 64])));
    }
    dataplane.apply(Change::Synced);
    let wrote = dataplane.sync()?;
    known.synced(wrote, Duration::from_millis(3), Arc::new(dataplane.snapshot()));
    let text = status_text(&ns)?;
    let first = text.lines().next().unwrap_or_default();
    assert!(first.starts_with("PROBLEM  the kernel refuses 10.96.0.7:80/tcp of "), "{text}");
    assert!(first.contains("(23)") && first.contains("; retry in "), "{text}");
    assert!(text.contains("in 3.0ms: "), "{text}");
    let json = status_json(&ns)?;
    assert_eq!(json["quarantined"].as_array().map(Vec::len), Some(1), "{json:#}");
    assert_eq!(json["problems"].as_array().map(Vec::len), Some(1), "{json:#}");

    faults.refuse(|_| None);
    dataplane.apply(Change::slice(slice(7, Family::V4, &[7 * 64, 7 * 64 + 1])));
    let wrote = dataplane.sync()?;
    known.synced(wrote, Duration::from_millis(1), Arc::new(dataplane.snapshot()));
    let text = status_text(&ns)?;
    assert!(text.starts_with("OK  "), "{text}");
    Ok(())
}
