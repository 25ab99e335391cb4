//! Every kind of frontend from every side, in both families, on all protocols.
//!
//! [`expected`] is the table: it has a row for each combination, so a gap does not compile.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;
use shunt_testbed::{Host, Protocol};

use crate::world::{World, manifest, on_all_protocols, web};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Outside of the cluster.
    Client,
    /// The node under test.
    Node,
    /// A pod on it, also an endpoint of the Service.
    Pod,
    /// Another node.
    OtherNode,
    /// A pod on the other node, also an endpoint of the Service.
    OtherPod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// What is true of a Service besides its frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// It has three endpoints: two on the node, one elsewhere.
    Endpoints,
    /// It has none.
    NoEndpoints,
    /// It has endpoints, but not for this port.
    UnlistedPort,
}

/// What must become of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// They reach every endpoint with the sender's address, except when that is the endpoint.
    Preserved,
    /// They reach every endpoint with an address of the node.
    Masqueraded,
    /// The sender is told at once that there is nothing.
    Refused,
    /// They are none of the agent's business.
    Unhandled,
    /// They do not come to the node: its routes are not the sender's.
    Elsewhere,
}

/// The table. The configuration detects local traffic by ClusterCIDR; all policies are Cluster.
fn expected(scenario: Scenario, frontend: Frontend, origin: Origin) -> Expected {
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Origin::{Client, Node, OtherNode, OtherPod, Pod};
    match (scenario, frontend, origin) {
        // The other node has no agent, and service addresses are only routed from the client.
        (_, ClusterIp | ExternalIp | LoadBalancer, OtherNode | OtherPod) => Expected::Elsewhere,

        (Scenario::Endpoints, ClusterIp, Client | Node) => Expected::Masqueraded,
        (Scenario::Endpoints, ClusterIp, Pod) => Expected::Preserved,
        (Scenario::Endpoints, ExternalIp | LoadBalancer, Client | Node | Pod)
        | (Scenario::Endpoints, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Expected::Masqueraded
        }

        (Scenario::NoEndpoints, ClusterIp | ExternalIp | LoadBalancer, Client | Node | Pod)
        | (Scenario::NoEndpoints, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Expected::Refused
        }

        (Scenario::UnlistedPort, ClusterIp, Client | Node | Pod) => Expected::Refused,
        (Scenario::UnlistedPort, ExternalIp | LoadBalancer, Client | Node | Pod) => {
            Expected::Unhandled
        }
        // Any port of the node that is no node port: see node_ports.rs.
        (Scenario::UnlistedPort, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Expected::Elsewhere
        }
    }
}

#[test]
fn every_frontend_is_reached_from_every_side() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    check(&world, Scenario::Endpoints)
}

#[test]
fn without_endpoints_every_frontend_refuses() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &[]))?;
    let _agent = world.start()?;
    check(&world, Scenario::NoEndpoints)
}

#[test]
fn without_any_slice_every_frontend_refuses() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let _agent = world.start()?;
    check(&world, Scenario::NoEndpoints)
}

#[test]
fn a_port_that_is_not_listed_is_refused_at_cluster_ips_only() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    check(&world, Scenario::UnlistedPort)
}

/// The same table must hold for a Service that is reached through other ports than its endpoints
/// listen on, and whose name needs care in rules.
#[test]
fn a_service_may_have_a_name_that_looks_like_a_number() -> Result<()> {
    let world = World::new()?;
    let service = on_all_protocols(shunt_testbed::Service::new("0-a.b"), 65535, None)
        .namespace("1-namespace")
        .cluster_ips(&["10.96.0.77"]);
    let slice = Protocol::ALL.into_iter().fold(
        shunt_testbed::EndpointSlice::v4("0-a.b").namespace("1-namespace"),
        |slice, protocol| slice.port(&protocol.to_string().to_lowercase(), protocol, 8080),
    );
    let slice = slice.hosts(&[&world.lab.pod1]);
    world.manifests.write("web.yaml", format!("{service}{slice}"))?;
    let _agent = world.start()?;
    for protocol in Protocol::ALL {
        world.lab.from(&world.lab.client).probe(protocol, "10.96.0.77:65535").reaches(&["pod-1"]);
    }
    Ok(())
}

struct Cell {
    scenario: Scenario,
    frontend: Frontend,
    origin: Origin,
    family: Family,
    protocol: Protocol,
}

impl Cell {
    fn all(scenario: Scenario) -> impl Iterator<Item = Self> {
        use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
        use Origin::{Client, Node, OtherNode, OtherPod, Pod};
        let mut cells = Vec::new();
        for frontend in [ClusterIp, ExternalIp, LoadBalancer, NodePort] {
            for origin in [Client, Node, Pod, OtherNode, OtherPod] {
                for family in [Family::V4, Family::V6] {
                    for protocol in Protocol::ALL {
                        cells.push(Self { scenario, frontend, origin, family, protocol });
                    }
                }
            }
        }
        cells.into_iter()
    }

    fn host<'a>(&self, world: &'a World) -> &'a Host {
        match self.origin {
            Origin::Client => &world.lab.client,
            Origin::Node => &world.lab.node,
            Origin::Pod => &world.lab.pod1,
            Origin::OtherNode => &world.lab.node2,
            Origin::OtherPod => &world.lab.pod3,
        }
    }

    fn address(&self) -> Result<SocketAddr> {
        let (v4, v6) = match self.frontend {
            Frontend::ClusterIp => ("10.96.0.10", "fd00:96::10"),
            Frontend::ExternalIp => ("198.51.100.10", "2001:db8:51::10"),
            Frontend::LoadBalancer => ("203.0.113.10", "2001:db8:113::10"),
            Frontend::NodePort => ("192.0.2.10", "2001:db8:2::10"),
        };
        let ip = if self.family == Family::V4 { v4.parse()? } else { v6.parse()? };
        let port = match (self.scenario, self.frontend) {
            (Scenario::UnlistedPort, _) => 81,
            (_, Frontend::NodePort) => 30080,
            _ => 80,
        };
        Ok(SocketAddr::new(ip, port))
    }

    /// Sends the packets; panics if something else becomes of them.
    fn check(&self, world: &World, to: SocketAddr) {
        let host = self.host(world);
        let probe = world.lab.from(host).probe(self.protocol, to);
        let pods = ["pod-1", "pod-2", "pod-3"];
        match expected(self.scenario, self.frontend, self.origin) {
            Expected::Preserved => {
                let reached = probe.reaches(&pods);
                reached.at(&host.name).source_masqueraded();
                reached.not_at(&host.name).source_preserved();
            }
            Expected::Masqueraded => drop(probe.reaches(&pods).source_masqueraded()),
            Expected::Refused => probe.refused(),
            Expected::Unhandled => probe.unhandled(),
            Expected::Elsewhere => {}
        }
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, frontend, origin, family, protocol } = self;
        let expected = expected(*scenario, *frontend, *origin);
        write!(
            f,
            "{frontend:<12?} from {origin:<9?} {family:?} {protocol:<4} {scenario:?}: {expected:?}"
        )
    }
}

/// Checks all cells of a scenario, so that a failure shows which others fail with it.
fn check(world: &World, scenario: Scenario) -> Result<()> {
    let mut failed = String::new();
    for cell in Cell::all(scenario) {
        let to = cell.address()?;
        if catch_unwind(AssertUnwindSafe(|| cell.check(world, to))).is_err() {
            writeln!(failed, "  {cell}")?;
        }
    }
    assert!(failed.is_empty(), "cells of the table that do not hold:\n{failed}");
    Ok(())
}
