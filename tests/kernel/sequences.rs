//! Whatever the order of changes, the kernel ends up as after a fresh start.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use shunt::model::{Change, Family, TrafficPolicy};
use shunt_lab::Netns;

use crate::cluster::{dataplane, name, service, slice};

const SEQUENCES: u32 = 200;

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

/// Few Services and few addresses, so that changes meet: the same frontend is wanted by several.
fn change() -> impl Strategy<Value = Change> {
    let n = || 0_u16..6;
    prop_oneof![
        4 => (n(), n(), any::<[bool; 6]>()).prop_map(
            |(n, address, [internal, external, node_port, vip, restricted, sticky])| {
                let mut service = service(n);
                service.cluster_ips = crate::cluster::service(address / 2).cluster_ips;
                let policy =
                    |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
                service.internal_policy = policy(internal);
                service.external_policy = policy(external);
                if !node_port {
                    service.ports[0].node_port = None;
                }
                if vip {
                    service.load_balancer_ips = vec![
                        Ipv4Addr::new(203, 0, 113, 1).into(),
                        Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 1).into(),
                    ];
                }
                if sticky {
                    service.affinity_seconds = Some(10_800 + u32::from(address));
                }
                if restricted {
                    let ranges = ["192.0.2.0/25", "192.0.2.64/26", "10.0.0.0/9", "2001:db8::/64"];
                    service.source_ranges = ranges.iter().flat_map(|range| range.parse()).collect();
                }
                Change::Service(service)
            }
        ),
        1 => n().prop_map(|n| Change::ServiceGone(name(n))),
        6 => (n(), family(), proptest::collection::btree_set(0_u16..12, 0..8)).prop_map(
            |(n, family, endpoints)| {
                Change::Slice(slice(n, family, &endpoints.into_iter().collect::<Vec<_>>()))
            }
        ),
        1 => (n(), family()).prop_map(|(n, family)| Change::SliceGone(slice(n, family, &[]).name)),
    ]
}

fn rounds() -> impl Strategy<Value = Vec<Vec<Change>>> {
    proptest::collection::vec(proptest::collection::vec(change(), 1..6), 1..8)
}

#[test]
fn any_sequence_of_changes_ends_as_a_fresh_start_does() {
    let config = Config { cases: SEQUENCES, failure_persistence: None, ..Config::default() };
    let check = |rounds: Vec<Vec<Change>>| -> Result<()> {
        let ns = Netns::new()?;
        let mut running = dataplane(&ns, Vec::new())?;
        running.sync()?;
        for round in &rounds {
            round.iter().cloned().for_each(|change| running.apply(change));
            running.sync()?;
        }
        assert!(!running.tidy(), "an unused chain could not be deleted");
        let fresh = Netns::new()?;
        dataplane(&fresh, rounds.concat())?.sync()?;
        assert_eq!(ns.ruleset()?, fresh.ruleset()?);
        // And a restart agrees with what is there.
        assert_eq!(dataplane(&ns, rounds.concat())?.sync()?, None);
        Ok(())
    };
    TestRunner::new(config)
        .run(&rounds(), |rounds| {
            check(rounds).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
