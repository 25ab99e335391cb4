//! `detectLocalMode`: how traffic of pods is told from other traffic.

use anyhow::{Context, Result};
use shunt_testbed::Node;

use crate::table::{Expected, Frontend, Scenario, Sender, check, name, service};
use crate::world::{World, cluster_ip_service, manifest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing is configured.
    Off,
    ClusterCidr,
    /// The Node has a pod CIDR of each family.
    NodeCidr,
    /// The Node has none.
    NodeCidrUnknown,
    /// The bridge on which `pod-2` is.
    Bridge,
    /// A bridge that there is not.
    OtherBridge,
    Prefix,
    /// A prefix that no interface has.
    OtherPrefix,
}

impl Mode {
    fn config(self) -> &'static str {
        match self {
            Self::Off => "",
            Self::ClusterCidr => {
                "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/32\n"
            }
            Self::NodeCidr | Self::NodeCidrUnknown => "detectLocalMode: NodeCIDR\n",
            Self::Bridge => {
                "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}\n"
            }
            Self::OtherBridge => {
                "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr1}\n"
            }
            Self::Prefix => {
                "detectLocalMode: InterfaceNamePrefix\n\
                 detectLocal: {interfaceNamePrefix: veth-}\n"
            }
            Self::OtherPrefix => {
                "detectLocalMode: InterfaceNamePrefix\n\
                 detectLocal: {interfaceNamePrefix: cali}\n"
            }
        }
    }

    /// Whether anything is detected at all.
    fn is_on(self) -> bool {
        match self {
            Self::Off | Self::NodeCidrUnknown => false,
            Self::ClusterCidr
            | Self::NodeCidr
            | Self::Bridge
            | Self::OtherBridge
            | Self::Prefix
            | Self::OtherPrefix => true,
        }
    }

    /// Whether the sender counts as a local pod.
    fn is_local(self, sender: Sender) -> bool {
        match self {
            Self::ClusterCidr => matches!(sender, Sender::Pod | Sender::OtherPod),
            Self::NodeCidr | Self::Bridge | Self::Prefix => sender == Sender::Pod,
            Self::Off | Self::NodeCidrUnknown | Self::OtherBridge | Self::OtherPrefix => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoints {
    /// One on the node.
    Here,
    /// One elsewhere; external traffic has policy Local.
    Away,
}

impl Scenario for (Mode, Endpoints) {
    fn number(self) -> u8 {
        10 + self.1 as u8
    }
}

/// The table.
fn expected(mode: Mode, endpoints: Endpoints, frontend: Frontend, sender: Sender) -> Expected {
    use Endpoints::{Away, Here};
    use Expected::{Dropped, Masqueraded, Preserved, Skipped};
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Sender::{Client, Node, OtherNode, OtherPod, Pod};
    match (endpoints, frontend, sender) {
        // Whether these are masqueraded does not depend on who sends; see `policies`.
        (Here, ExternalIp | LoadBalancer | NodePort, _) => Skipped,
        (Here, ClusterIp, Client | Node | Pod | OtherNode | OtherPod) => {
            if mode.is_on() && !mode.is_local(sender) {
                Masqueraded(&["pod-1"])
            } else {
                Preserved(&["pod-1"])
            }
        }
        // Without masquerade its answers to others would not pass the node.
        (Away, ClusterIp, _) => Skipped,
        // The other node has no route to these; its pod would reach itself.
        (Away, ExternalIp | LoadBalancer, OtherNode | OtherPod) | (Away, NodePort, OtherPod) => {
            Skipped
        }
        (Away, ExternalIp | LoadBalancer | NodePort, Client | OtherNode) => Dropped,
        (Away, ExternalIp | LoadBalancer | NodePort, Node) => Masqueraded(&["pod-3"]),
        (Away, ExternalIp | LoadBalancer | NodePort, Pod) => {
            if mode.is_local(sender) {
                Preserved(&["pod-3"])
            } else {
                Dropped
            }
        }
    }
}

fn world() -> Result<World> {
    let world = World::new()?;
    // Here the other node does send ClusterIPs to the node.
    world.lab.node2.ip("route add 10.96.0.0/12 via 192.0.2.10\n\
         route add fd00:96::/108 via 2001:db8:2::10")?;
    for endpoints in [Endpoints::Here, Endpoints::Away] {
        let scenario = (Mode::Off, endpoints);
        let (service, name) = (service(scenario), name(scenario));
        let content = match endpoints {
            Endpoints::Here => manifest(&service, &name, &[&world.lab.pod1]),
            Endpoints::Away => {
                let service = service.spec("externalTrafficPolicy: Local");
                manifest(&service, &name, &[&world.lab.pod3])
            }
        };
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

fn with_pod_cidrs(world: &World) -> Node {
    Node::of(&world.lab.node).spec("podCIDRs: ['10.244.0.0/24', 'fd00:244::/64']")
}

/// Puts `pod-2` on a bridge instead of a route to its own interface.
fn put_on_bridge(world: &World) -> Result<()> {
    let [v4, v6] = ["10.244.0.12", "fd00:244::12"];
    let link = world.lab.pod2.output("ip", &["-brief", "link", "show", "eth0"])?;
    let mac = link.split_whitespace().nth(2).context("no link-layer address")?;
    world.lab.node.ip(&format!(
        "link add cbr0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set cbr0 up\n\
         link set veth-pod-2 master cbr0\n\
         route replace {v4}/32 dev cbr0\n\
         route del {v6}/128 dev veth-pod-2\n\
         route add {v6}/128 dev cbr0\n\
         neigh add {v4} lladdr {mac} dev cbr0 nud permanent\n\
         neigh add {v6} lladdr {mac} dev cbr0 nud permanent"
    ))
}

fn check_mode(mode: Mode) -> Result<()> {
    let world = world()?;
    match mode {
        Mode::NodeCidr => world.manifests.write("node.yaml", with_pod_cidrs(&world))?,
        Mode::Bridge | Mode::OtherBridge => put_on_bridge(&world)?,
        Mode::Off
        | Mode::ClusterCidr
        | Mode::NodeCidrUnknown
        | Mode::Prefix
        | Mode::OtherPrefix => {}
    }
    let _agent = world.agent(mode.config())?.start()?;
    check_table(&world, mode);
    Ok(())
}

#[track_caller]
fn check_table(world: &World, mode: Mode) {
    check(world, &[(mode, Endpoints::Here), (mode, Endpoints::Away)], |cell| {
        let (mode, endpoints) = cell.scenario;
        expected(mode, endpoints, cell.frontend, cell.sender)
    });
}

#[test]
fn off() -> Result<()> {
    check_mode(Mode::Off)
}

#[test]
fn by_cluster_cidr() -> Result<()> {
    check_mode(Mode::ClusterCidr)
}

#[test]
fn by_node_cidr() -> Result<()> {
    check_mode(Mode::NodeCidr)
}

#[test]
fn by_bridge() -> Result<()> {
    check_mode(Mode::Bridge)
}

#[test]
fn by_a_bridge_that_there_is_not() -> Result<()> {
    check_mode(Mode::OtherBridge)
}

#[test]
fn by_interface_prefix() -> Result<()> {
    check_mode(Mode::Prefix)
}

#[test]
fn by_a_prefix_that_no_interface_has() -> Result<()> {
    check_mode(Mode::OtherPrefix)
}

/// The Node gets its pod CIDRs while the agent runs. They stay if it is registered again without.
#[test]
fn by_a_node_cidr_that_comes_later() -> Result<()> {
    let world = world()?;
    let _agent = world.agent(Mode::NodeCidr.config())?.start()?;
    check_table(&world, Mode::NodeCidrUnknown);
    let pod = world.lab.from(&world.lab.pod2);
    // With detection the pod reaches what it otherwise may not.
    let away = "198.51.100.11:80";
    world.manifests.write("node.yaml", with_pod_cidrs(&world))?;
    pod.tcp(away).eventually().reaches(&["pod-3"]);
    check_table(&world, Mode::NodeCidr);
    world.manifests.write("node.yaml", Node::of(&world.lab.node))?;
    let marker = cluster_ip_service("marker", &["10.96.0.99", "fd00:96::99"]);
    world.manifests.write("marker.yaml", manifest(&marker, "marker", &[&world.lab.pod1]))?;
    pod.tcp("10.96.0.99:80").eventually().reaches(&["pod-1"]);
    check_table(&world, Mode::NodeCidr);
    Ok(())
}
