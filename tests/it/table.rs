//! Tables of scenarios: the ways to reach a Service, who sends, and what must become of the packets.
//!
//! There are two sorts of tables. [`check`] is for what a single packet shows: a function from a
//! scenario, a frontend and a sender to what is [`Expected`], all combinations of which are tried. A
//! combination without a row does not compile. [`Table::check`] is for scenarios with several steps: the
//! same closure for each way to reach the Service.

use std::fmt::{self, Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use anyhow::{Result, ensure};
use shunt_testbed::{Host, Outcome, Protocol, Service};

use crate::world::{World, on_all_protocols};

/// The number of [`web`](crate::world::web).
pub(crate) const WEB: u8 = 10;

/// A kind of frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// As in `ip shunt`.
    pub(crate) fn table(self) -> &'static str {
        self.of("ip", "ip6")
    }

    /// The one of two that is of this family.
    pub(crate) fn of<T>(self, v4: T, v6: T) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }
}

/// The host's addresses of a family.
pub(crate) fn addresses(host: &Host, family: Family) -> Vec<IpAddr> {
    host.ips().filter(|ip| ip.is_ipv4() == (family == Family::V4)).collect()
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
    const ALL: [Self; 5] = [Self::Client, Self::Node, Self::Pod, Self::OtherNode, Self::OtherPod];

    fn host(self, world: &World) -> &Host {
        match self {
            Self::Client => &world.lab.client,
            Self::Node => &world.lab.node,
            Self::Pod => &world.lab.pod2,
            Self::OtherNode => &world.lab.node2,
            Self::OtherPod => &world.lab.pod3,
        }
    }
}

/// A way to reach a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) frontend: Frontend,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
}

impl Case {
    /// The address and port at which [`web`](crate::world::web) is reached.
    pub(crate) fn address(self) -> SocketAddr {
        self.address_of(WEB)
    }

    /// The same of the Service of this number.
    pub(crate) fn address_of(self, number: u8) -> SocketAddr {
        let port = if self.frontend == Frontend::NodePort { node_port(number) } else { 80 };
        SocketAddr::new(ip(self.frontend, self.family, number), port)
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {}", self.frontend, self.family, self.protocol)
    }
}

/// The ways to reach a Service on which a scenario is tried; each in both families.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    frontends: &'static [Frontend],
    protocols: &'static [Protocol],
}

impl Table {
    /// All of them.
    pub(crate) const ALL: Self = Self {
        frontends: &[
            Frontend::ClusterIp,
            Frontend::ExternalIp,
            Frontend::LoadBalancer,
            Frontend::NodePort,
        ],
        protocols: &Protocol::ALL,
    };

    /// Frontends that `externalTrafficPolicy` governs.
    pub(crate) const EXTERNAL: Self = Self {
        frontends: &[Frontend::ExternalIp, Frontend::LoadBalancer, Frontend::NodePort],
        ..Self::ALL
    };

    /// ClusterIPs only.
    pub(crate) const CLUSTER_IPS: Self = Self { frontends: &[Frontend::ClusterIp], ..Self::ALL };

    /// Of these only the ways with one of those protocols.
    pub(crate) const fn on(self, protocols: &'static [Protocol]) -> Self {
        Self { protocols, ..self }
    }

    /// The cells.
    pub(crate) fn cases(self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &frontend in self.frontends {
            for family in Family::ALL {
                let case = |&protocol| Case { frontend, family, protocol };
                cases.extend(self.protocols.iter().map(case));
            }
        }
        cases
    }

    /// Checks all cells, so that a failure shows which others fail with it.
    pub(crate) fn check(self, step: &str, check: impl Fn(Case) -> Result<()>) -> Result<()> {
        let failed: String =
            self.cases().iter().filter_map(|case| failure(case, || check(*case))).collect();
        ensure!(failed.is_empty(), "{step}: cells of the table that do not hold:\n{failed}");
        Ok(())
    }
}

/// A line about a cell that does not hold.
pub(crate) fn failure(cell: &impl Display, check: impl FnOnce() -> Result<()>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("  {cell}: {error:#}\n")),
        Err(_) => Some(format!("  {cell}: see above\n")),
    }
}

/// What must become of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// They reach exactly these with the sender's address, except when that is the endpoint.
    Preserved(&'static [&'static str]),
    /// They reach exactly these with another address, one of the node's.
    Masqueraded(&'static [&'static str]),
    /// The sender gets a reset or an ICMP error at once.
    Refused,
    /// The sender gets no answer.
    Dropped,
    /// They are none of the agent's business.
    Unhandled,
    /// Not a case of this table: the sender has no route to the frontend, or says nothing new.
    Skipped,
}

/// What differs between the Services of a table.
pub(crate) trait Scenario: Copy + Debug + Sync {
    /// The number of the Service, from which its addresses and node port follow: 9 to 99.
    fn number(self) -> u8 {
        WEB
    }

    /// The port that packets are sent to, if it is not the Service's.
    fn port(self) -> Option<u16> {
        None
    }
}

/// A Service with every kind of frontend, in both families and on all protocols. Its addresses and
/// node port follow from the number.
pub(crate) fn service_of(name: &str, number: u8) -> Service {
    let ips = |frontend| Family::ALL.map(|family| ip(frontend, family, number).to_string());
    let [cluster, external, vip] =
        [Frontend::ClusterIp, Frontend::ExternalIp, Frontend::LoadBalancer].map(ips);
    on_all_protocols(Service::new(name), 80, Some(node_port(number)))
        .cluster_ips(&[&cluster[0], &cluster[1]])
        .external_ips(&[&external[0], &external[1]])
        .load_balancer(&[&vip[0], &vip[1]])
}

/// [`service_of`] a scenario.
pub(crate) fn service(scenario: impl Scenario) -> Service {
    service_of(&name(scenario), scenario.number())
}

/// The name of [`service`].
pub(crate) fn name(scenario: impl Scenario) -> String {
    format!("service-{}", scenario.number())
}

pub(crate) const fn node_port(number: u8) -> u16 {
    30_070 + number as u16
}

/// The address of a frontend of [`service_of`]. IPv6 addresses end in the same digits as IPv4 ones.
pub(crate) fn ip(frontend: Frontend, family: Family, number: u8) -> IpAddr {
    let digits = u16::from(number / 10 * 16 + number % 10);
    let v4 = |a, b, c| IpAddr::V4(Ipv4Addr::new(a, b, c, number));
    let v6 = |a, b, c| IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, digits));
    match frontend {
        Frontend::ClusterIp => family.of(v4(10, 96, 0), v6(0xfd00, 0x96, 0)),
        Frontend::ExternalIp => family.of(v4(198, 51, 100), v6(0x2001, 0xdb8, 0x51)),
        Frontend::LoadBalancer => family.of(v4(203, 0, 113), v6(0x2001, 0xdb8, 0x113)),
        Frontend::NodePort => family.of(
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x10)),
        ),
    }
}

/// One field of a table of single packets.
#[derive(Clone, Copy)]
pub(crate) struct Cell<S> {
    pub(crate) scenario: S,
    pub(crate) sender: Sender,
    pub(crate) frontend: Frontend,
    pub(crate) family: Family,
    protocol: Protocol,
}

impl<S: Scenario> Cell<S> {
    /// All combinations with these scenarios.
    fn all(scenarios: &[S]) -> Vec<Self> {
        let mut cells = Vec::new();
        for &scenario in scenarios {
            for sender in Sender::ALL {
                let cell = |Case { frontend, family, protocol }| Self {
                    scenario,
                    sender,
                    frontend,
                    family,
                    protocol,
                };
                cells.extend(Table::ALL.cases().into_iter().map(cell));
            }
        }
        cells
    }

    fn address(&self) -> SocketAddr {
        let Self { frontend, family, protocol, .. } = *self;
        let mut address = Case { frontend, family, protocol }.address_of(self.scenario.number());
        address.set_port(self.scenario.port().unwrap_or(address.port()));
        address
    }

    /// Sends the packets; panics if something else becomes of them.
    fn check(&self, world: &World, expected: Expected) {
        let host = self.sender.host(world);
        let mut probe = world.lab.from(host).probe(self.protocol, self.address());
        let node = &world.lab.node;
        let secondary = self.family.of(IpAddr::V4(node.ipv4[1]), IpAddr::V6(node.ipv6[1]));
        if self.sender == Sender::Node {
            probe = probe.source(secondary);
        }
        match expected {
            Expected::Preserved(servers) => {
                let reached = probe.reaches(servers);
                if servers.contains(&&*host.name) {
                    reached.at(&host.name).source_masqueraded();
                }
                reached.not_at(&host.name).source_preserved();
            }
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
        let Self { scenario, sender, frontend, family, protocol } = self;
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
    let (silent, others): (Vec<_>, Vec<_>) = cells
        .filter(|(_, expected)| *expected != Expected::Skipped)
        .partition(|(_, expected)| *expected == Expected::Dropped);
    assert!(silent.len() + others.len() > 0, "{scenarios:?}: all cells of the table are skipped");
    let failure = |(cell, expected): &(Cell<S>, Expected)| {
        failure(&format!("{cell}: {expected:?}"), || {
            cell.check(world, *expected);
            Ok(())
        })
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
