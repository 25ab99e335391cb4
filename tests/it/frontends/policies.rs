//! `externalTrafficPolicy` and `internalTrafficPolicy`.

use anyhow::Result;
use shunt_testbed::Echo;

use crate::table::{Expected, Frontend, Scenario, Sender, Table, check, name, service};
use crate::world::{CLUSTER_CIDR, TARGET, World, cluster_ip_service, manifest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policies {
    /// Both are Local; there are endpoints on the node and elsewhere.
    LocalAndHere,
    /// Both are Local; the only endpoint is elsewhere.
    LocalAndAway,
    /// Both are Local; there is no endpoint.
    LocalAndNowhere,
    /// Only the external one is Local; the only endpoint is elsewhere.
    ExternalLocal,
    /// Only the internal one is Local; the only endpoint is elsewhere.
    InternalLocal,
    /// Only the internal one is Local; there are endpoints on the node and elsewhere.
    InternalLocalAndHere,
}

impl Policies {
    const ALL: [Self; 6] = [
        Self::LocalAndHere,
        Self::LocalAndAway,
        Self::LocalAndNowhere,
        Self::ExternalLocal,
        Self::InternalLocal,
        Self::InternalLocalAndHere,
    ];
}

impl Scenario for Policies {
    fn number(self) -> u8 {
        10 + self as u8
    }
}

/// The table. Local traffic is detected by ClusterCIDR.
fn expected(scenario: Policies, frontend: Frontend, sender: Sender) -> Expected {
    use Expected::{Dropped, Masqueraded, Preserved, Refused, Skipped};
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Policies::{
        ExternalLocal, InternalLocal, InternalLocalAndHere, LocalAndAway, LocalAndHere,
        LocalAndNowhere,
    };
    use Sender::{Client, Node, OtherNode, OtherPod, Pod};
    match (scenario, frontend, sender) {
        // The other node has no route to service addresses.
        (_, ClusterIp | ExternalIp | LoadBalancer, OtherNode | OtherPod) => Skipped,

        (LocalAndHere | InternalLocalAndHere, ClusterIp, Client | Node) => Masqueraded(&["pod-1"]),
        (LocalAndHere | InternalLocalAndHere, ClusterIp, Pod) => Preserved(&["pod-1"]),
        (LocalAndAway | InternalLocal, ClusterIp, Client | Node | Pod) => Dropped,
        (ExternalLocal, ClusterIp, Client | Node) => Masqueraded(&["pod-3"]),
        (ExternalLocal, ClusterIp, Pod) => Preserved(&["pod-3"]),

        (LocalAndHere, ExternalIp | LoadBalancer | NodePort, Client | OtherNode) => {
            Preserved(&["pod-1"])
        }
        (LocalAndHere, ExternalIp | LoadBalancer | NodePort, Pod) => Preserved(&["pod-1", "pod-3"]),
        (LocalAndHere, ExternalIp | LoadBalancer | NodePort, Node) => {
            Masqueraded(&["pod-1", "pod-3"])
        }
        (
            LocalAndAway | ExternalLocal,
            ExternalIp | LoadBalancer | NodePort,
            Client | OtherNode,
        ) => Dropped,
        (LocalAndAway | ExternalLocal, ExternalIp | LoadBalancer | NodePort, Pod) => {
            Preserved(&["pod-3"])
        }
        (LocalAndAway | ExternalLocal, ExternalIp | LoadBalancer | NodePort, Node) => {
            Masqueraded(&["pod-3"])
        }
        (InternalLocal, ExternalIp | LoadBalancer, Client | Node | Pod)
        | (InternalLocal, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Masqueraded(&["pod-3"])
        }
        (InternalLocalAndHere, ExternalIp | LoadBalancer, Client | Node | Pod)
        | (InternalLocalAndHere, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Masqueraded(&["pod-1", "pod-3"])
        }
        // For a pod of the other node the packets would come back to itself, unmasqueraded.
        (LocalAndHere | LocalAndAway | ExternalLocal, NodePort, OtherPod) => Skipped,

        (LocalAndNowhere, _, _) => Refused,
    }
}

/// A Service with the policies of a scenario, and its slices.
fn content(world: &World, identity: impl Scenario, scenario: Policies) -> String {
    let (here, away) = (&world.lab.pod1, &world.lab.pod3);
    let (external, internal) = ("externalTrafficPolicy: Local", "internalTrafficPolicy: Local");
    let service = service(identity);
    let both = service.clone().spec(external).spec(internal);
    let name = &name(identity);
    match scenario {
        Policies::LocalAndHere => manifest(&both, name, &[here, away]),
        Policies::LocalAndAway => manifest(&both, name, &[away]),
        Policies::LocalAndNowhere => manifest(&both, name, &[]),
        Policies::ExternalLocal => manifest(&service.spec(external), name, &[away]),
        Policies::InternalLocal => manifest(&service.spec(internal), name, &[away]),
        Policies::InternalLocalAndHere => manifest(&service.spec(internal), name, &[here, away]),
    }
}

fn world_of_all() -> Result<World> {
    let world = World::new()?;
    for scenario in Policies::ALL {
        let content = content(&world, scenario, scenario);
        world.manifests.write(&format!("{}.yaml", name(scenario)), content)?;
    }
    Ok(world)
}

#[test]
fn policies_decide_who_is_reached_and_whose_address_is_seen() -> Result<()> {
    let world = world_of_all()?;
    let _agent = world.start()?;
    check(&world, &Policies::ALL, |cell| expected(cell.scenario, cell.frontend, cell.sender));
    Ok(())
}

/// `masqueradeAll` is about ClusterIPs: policy Local still preserves the source elsewhere.
#[test]
fn masquerade_all_masquerades_cluster_ips_only() -> Result<()> {
    let world = world_of_all()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{masqueradeAll: true}}\n");
    let _agent = world.agent(&config)?.start()?;
    check(&world, &Policies::ALL, |cell| {
        match (cell.frontend, expected(cell.scenario, cell.frontend, cell.sender)) {
            (Frontend::ClusterIp, Expected::Preserved(pods)) => Expected::Masqueraded(pods),
            (_, expected) => expected,
        }
    });
    Ok(())
}

/// Endpoints with `hostNetwork` are the nodes themselves.
#[test]
fn host_network_endpoints_under_policy_local_see_the_source() -> Result<()> {
    let world = World::new()?;
    let (node, node2) = (&world.lab.node, &world.lab.node2);
    let _servers = [Echo::on(node, TARGET)?, Echo::on(node2, TARGET)?];
    let (both, away) = (Policies::LocalAndHere, Policies::LocalAndAway);
    for (scenario, hosts) in [(both, &[node, node2][..]), (away, &[node2])] {
        let service = service(scenario).spec("externalTrafficPolicy: Local");
        let content = manifest(&service, &name(scenario), hosts);
        world.manifests.write(&format!("{}.yaml", name(scenario)), content)?;
    }
    let _agent = world.start()?;
    check(&world, &[both, away], |cell| match (cell.scenario, cell.frontend, cell.sender) {
        (_, Frontend::ClusterIp, _) | (_, _, Sender::Node | Sender::OtherPod) => Expected::Skipped,
        (_, Frontend::ExternalIp | Frontend::LoadBalancer, Sender::OtherNode) => Expected::Skipped,
        (Policies::LocalAndHere, _, Sender::Client | Sender::OtherNode) => {
            Expected::Preserved(&["node-1"])
        }
        (Policies::LocalAndHere, _, Sender::Pod) => Expected::Preserved(&["node-1", "node-2"]),
        (_, _, Sender::Pod) => Expected::Preserved(&["node-2"]),
        (_, _, Sender::Client | Sender::OtherNode) => Expected::Dropped,
    });
    Ok(())
}

/// One Service that is in one scenario after the other.
#[derive(Clone, Copy, Debug)]
struct Changing(Policies);

impl Scenario for Changing {
    fn number(self) -> u8 {
        9
    }
}

#[test]
fn a_service_moves_from_one_policy_to_another() -> Result<()> {
    use Policies::{ExternalLocal, InternalLocal, LocalAndAway, LocalAndHere, LocalAndNowhere};
    let world = World::new()?;
    let _agent = world.start()?;
    let steps = [
        LocalAndHere,
        LocalAndAway,
        InternalLocal,
        ExternalLocal,
        LocalAndNowhere,
        LocalAndHere,
        LocalAndNowhere,
        InternalLocal,
        LocalAndAway,
        LocalAndHere,
    ];
    for (step, scenario) in steps.into_iter().enumerate() {
        // What is in one file is applied at once: the marker tells when.
        let marker = format!("10.96.1.{step}");
        let marker_service = cluster_ip_service("marker", &[&marker]);
        let marker_service = manifest(&marker_service, "marker", &[&world.lab.pod2]);
        let content = content(&world, Changing(scenario), scenario);
        world.manifests.write("changing.yaml", format!("{content}{marker_service}"))?;
        world
            .lab
            .from(&world.lab.client)
            .tcp(format!("{marker}:80"))
            .eventually()
            .reaches(&["pod-2"]);
        check(&world, &[Changing(scenario)], |cell| {
            expected(cell.scenario.0, cell.frontend, cell.sender)
        });
    }
    Ok(())
}

/// A pod that reaches itself through an external frontend needs the masquerade; its fellow does
/// not.
#[test]
fn an_endpoint_on_the_node_may_reach_itself_from_outside_addresses() -> Result<()> {
    let world = World::new()?;
    let scenario = Policies::LocalAndHere;
    world.manifests.write("web.yaml", content(&world, scenario, scenario))?;
    let _agent = world.start()?;
    Table::EXTERNAL.check("from an endpoint", |case| {
        let to = case.address_of(scenario.number());
        let reached = world.lab.from(&world.lab.pod1).probe(case.protocol, to);
        let reached = reached.reaches(&["pod-1", "pod-3"]);
        reached.at("pod-1").source_masqueraded();
        reached.not_at("pod-1").source_preserved();
        Ok(())
    })
}
