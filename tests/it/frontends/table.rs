//! Tables of what must become of packets, and how they are checked.

use std::fmt::{self, Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use shunt_testbed::{Host, Outcome, Protocol, Service};

use crate::world::{World, on_all_protocols};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl Frontend {
    pub(crate) const ALL: [Self; 4] =
        [Self::ClusterIp, Self::ExternalIp, Self::LoadBalancer, Self::NodePort];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Outside of the cluster.
    Client,
    /// The node under test, from its secondary address: a masquerade changes that.
    Node,
    /// `pod-2`, on the node.
    Pod,
    /// Another node.
    OtherNode,
    /// `pod-3`, on the other node.
    OtherPod,
}

impl Sender {
    pub(crate) const ALL: [Self; 5] =
        [Self::Client, Self::Node, Self::Pod, Self::OtherNode, Self::OtherPod];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The one of two addresses that is of this family.
    pub(crate) fn of<T>(self, v4: T, v6: T) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }
}

/// What must become of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// They reach exactly these with the sender's address.
    Preserved(&'static [&'static str]),
    /// They reach exactly these with another address, one of the node's.
    Masqueraded(&'static [&'static str]),
    /// The sender is told at once that there is nothing.
    Refused,
    /// Nobody answers.
    Dropped,
    /// They are none of the agent's business.
    Unhandled,
    /// Not a case of this table: the sender has no route to the frontend, or says nothing new.
    Skipped,
}

/// What differs between the Services of a table. Each has a number of its own.
pub(crate) trait Scenario: Copy + Debug + Sync {
    fn number(self) -> u8;
}

/// A Service with every kind of frontend, in both families and on all protocols. Its addresses and
/// node port follow from the number.
pub(crate) fn service(scenario: impl Scenario) -> Service {
    let number = scenario.number();
    let ips = |frontend| Family::ALL.map(|family| ip(frontend, family, number).to_string());
    let [cluster, external, vip] =
        [Frontend::ClusterIp, Frontend::ExternalIp, Frontend::LoadBalancer].map(ips);
    on_all_protocols(Service::new(&name(scenario)), 80, Some(node_port(number)))
        .cluster_ips(&[&cluster[0], &cluster[1]])
        .external_ips(&[&external[0], &external[1]])
        .load_balancer(&[&vip[0], &vip[1]])
}

/// The name of [`service`].
pub(crate) fn name(scenario: impl Scenario) -> String {
    format!("service-{}", scenario.number())
}

fn node_port(number: u8) -> u16 {
    30_000 + u16::from(number)
}

/// The address of a frontend of [`service`].
pub(crate) fn ip(frontend: Frontend, family: Family, number: u8) -> IpAddr {
    let (n, v6) = (number, |a, b, c, n| IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, n)));
    let v4 = |a, b, c, n| IpAddr::V4(Ipv4Addr::new(a, b, c, n));
    let last = u16::from(n);
    match frontend {
        Frontend::ClusterIp => family.of(v4(10, 96, 0, n), v6(0xfd00, 0x96, 0, last)),
        Frontend::ExternalIp => family.of(v4(198, 51, 100, n), v6(0x2001, 0xdb8, 0x51, last)),
        Frontend::LoadBalancer => family.of(v4(203, 0, 113, n), v6(0x2001, 0xdb8, 0x113, last)),
        Frontend::NodePort => family.of(v4(192, 0, 2, 10), v6(0x2001, 0xdb8, 2, 0x10)),
    }
}

/// The address and port of a frontend of [`service`].
pub(crate) fn address(frontend: Frontend, family: Family, scenario: impl Scenario) -> SocketAddr {
    let number = scenario.number();
    let port = if frontend == Frontend::NodePort { node_port(number) } else { 80 };
    SocketAddr::new(ip(frontend, family, number), port)
}

/// The host that a sender is.
pub(crate) fn host(world: &World, sender: Sender) -> &Host {
    match sender {
        Sender::Client => &world.lab.client,
        Sender::Node => &world.lab.node,
        Sender::Pod => &world.lab.pod2,
        Sender::OtherNode => &world.lab.node2,
        Sender::OtherPod => &world.lab.pod3,
    }
}

/// One field of a table.
#[derive(Clone, Copy)]
pub(crate) struct Cell<S> {
    pub(crate) scenario: S,
    pub(crate) frontend: Frontend,
    pub(crate) sender: Sender,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
}

impl<S: Scenario> Cell<S> {
    /// All combinations with these scenarios.
    fn all(scenarios: &[S]) -> Vec<Self> {
        let mut cells = Vec::new();
        for &scenario in scenarios {
            for frontend in Frontend::ALL {
                for sender in Sender::ALL {
                    for family in Family::ALL {
                        for protocol in Protocol::ALL {
                            cells.push(Self { scenario, frontend, sender, family, protocol });
                        }
                    }
                }
            }
        }
        cells
    }

    /// Sends the packets; panics if something else becomes of them.
    fn check(&self, world: &World, expected: Expected) {
        let mut probe = world
            .lab
            .from(host(world, self.sender))
            .probe(self.protocol, address(self.frontend, self.family, self.scenario));
        let node = &world.lab.node;
        let secondary = self.family.of(IpAddr::V4(node.ipv4[1]), IpAddr::V6(node.ipv6[1]));
        if self.sender == Sender::Node {
            probe = probe.source(secondary);
        }
        match expected {
            Expected::Preserved(servers) => drop(probe.reaches(servers).source_preserved()),
            Expected::Masqueraded(servers) => {
                let reached = probe.reaches(servers).source_masqueraded();
                for (outcome, _) in &reached.tally().counts {
                    let kept = matches!(
                        outcome, Outcome::Reached { source, .. } if *source == secondary
                    );
                    assert!(!kept, "{self}: not masqueraded, {outcome}");
                }
            }
            Expected::Refused => probe.refused(),
            Expected::Dropped => probe.times(2).dropped(),
            Expected::Unhandled => probe.unhandled(),
            Expected::Skipped => {}
        }
    }
}

impl<S: Scenario> Display for Cell<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, frontend, sender, family, protocol } = self;
        write!(f, "{scenario:?}: {frontend:?} from {sender:?}, {family:?} {protocol}")
    }
}

/// Checks all combinations of a table with these scenarios, so that a failure shows which others
/// fail with it.
#[track_caller]
pub(crate) fn check<S: Scenario>(
    world: &World,
    scenarios: &[S],
    expected: impl Fn(&Cell<S>) -> Expected,
) {
    let cells = Cell::all(scenarios).into_iter().map(|cell| (cell, expected(&cell)));
    let (silent, others): (Vec<_>, Vec<_>) =
        cells.partition(|(_, expected)| *expected == Expected::Dropped);
    let failure = |(cell, expected): &(Cell<S>, Expected)| {
        let result = catch_unwind(AssertUnwindSafe(|| cell.check(world, *expected)));
        result.is_err().then(|| format!("  {cell}: {expected:?}\n"))
    };
    // Silence takes its time, and as long for many as for one.
    let silent: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = silent.iter().map(|cell| scope.spawn(|| failure(cell))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().filter_map(join).collect()
    });
    let failed: String = others.iter().filter_map(failure).chain(silent).collect();
    assert!(failed.is_empty(), "cells of the table that do not hold:\n{failed}");
}
