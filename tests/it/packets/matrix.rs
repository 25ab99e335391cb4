//! Every kind of frontend from every side, in both families, on all protocols.
//!
//! [`expected`] is the table: it has a row for each combination, so a gap does not compile.

use anyhow::Result;
use shunt_testbed::{EndpointSlice, Protocol, Service};

use crate::table::{self, Expected, Frontend, Sender, check};
use crate::world::{World, manifest, on_all_protocols, target_ports, web};

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

impl table::Scenario for Scenario {
    fn port(self) -> Option<u16> {
        (self == Self::UnlistedPort).then_some(81)
    }
}

/// The table. The configuration detects local traffic by ClusterCIDR; all policies are Cluster.
fn expected(scenario: Scenario, frontend: Frontend, sender: Sender) -> Expected {
    use Expected::{Masqueraded, Preserved, Refused, Skipped, Unhandled};
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Sender::{Client, Node, OtherNode, OtherPod, Pod};
    const PODS: &[&str] = &["pod-1", "pod-2", "pod-3"];
    match (scenario, frontend, sender) {
        // The other node has no agent, and service addresses are only routed from the client.
        (_, ClusterIp | ExternalIp | LoadBalancer, OtherNode | OtherPod) => Skipped,

        (Scenario::Endpoints, ClusterIp, Client | Node) => Masqueraded(PODS),
        (Scenario::Endpoints, ClusterIp, Pod) => Preserved(PODS),
        (Scenario::Endpoints, ExternalIp | LoadBalancer, Client | Node | Pod)
        | (Scenario::Endpoints, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Masqueraded(PODS)
        }

        (Scenario::NoEndpoints, ClusterIp | ExternalIp | LoadBalancer, Client | Node | Pod)
        | (Scenario::NoEndpoints, NodePort, Client | Node | Pod | OtherNode | OtherPod) => Refused,

        (Scenario::UnlistedPort, ClusterIp, Client | Node | Pod) => Refused,
        (Scenario::UnlistedPort, ExternalIp | LoadBalancer, Client | Node | Pod) => Unhandled,
        // Any port of the node that is no node port: see node_ports.rs.
        (Scenario::UnlistedPort, NodePort, Client | Node | Pod | OtherNode | OtherPod) => Skipped,
    }
}

#[track_caller]
fn check_all(world: &World, scenario: Scenario) {
    check(world, &[scenario], |cell| expected(cell.scenario, cell.frontend, cell.sender));
}

#[test]
fn every_frontend_is_reached_from_every_side() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    check_all(&world, Scenario::Endpoints);
    Ok(())
}

#[test]
fn without_endpoints_every_frontend_refuses() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &[]))?;
    let _agent = world.start()?;
    check_all(&world, Scenario::NoEndpoints);
    Ok(())
}

#[test]
fn without_any_slice_every_frontend_refuses() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("web.yaml", web())?;
    let _agent = world.start()?;
    check_all(&world, Scenario::NoEndpoints);
    Ok(())
}

#[test]
fn a_port_that_is_not_listed_is_refused_at_cluster_ips_only() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    check_all(&world, Scenario::UnlistedPort);
    Ok(())
}

/// A Service that is reached through other ports than its endpoints listen on, and whose name needs
/// care in rules.
#[test]
fn a_service_may_have_a_name_that_looks_like_a_number() -> Result<()> {
    let world = World::new()?;
    let service = on_all_protocols(Service::new("0-a.b"), 65535, None)
        .namespace("1-namespace")
        .cluster_ips(&["10.96.0.77"]);
    let slice = target_ports(EndpointSlice::v4("0-a.b")).namespace("1-namespace");
    let slice = slice.hosts(&[&world.lab.pod1]);
    world.manifests.write("web.yaml", format!("{service}{slice}"))?;
    let _agent = world.start()?;
    for protocol in Protocol::ALL {
        world.lab.from(&world.lab.client).probe(protocol, "10.96.0.77:65535").reaches(&["pod-1"]);
    }
    Ok(())
}
