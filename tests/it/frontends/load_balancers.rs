//! Load-balancer VIPs: `ipMode` and `loadBalancerSourceRanges`.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use shunt_testbed::{Protocol, Service};

use crate::table::{Expected, Family, Frontend, Scenario, Sender, check, ip, name, service};
use crate::world::{World, manifest, on_all_protocols};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ingress {
    /// Without `ipMode`.
    NoMode,
    /// `ipMode: VIP`.
    Vip,
    /// `ipMode: Proxy`.
    Proxy,
    /// Only the ranges of the client.
    Client,
    /// The client's and the node's segment.
    Segment,
    /// Ranges that overlap, contain each other, are equal, and touch.
    Overlapping,
    /// Ranges with white space around them.
    WhiteSpace,
    /// Everything, beside a range that the senders are not in.
    Everything,
    /// Only an IPv4 range, which none of the senders is in.
    OnlyV4,
    /// Only an IPv6 range, which none of the senders is in.
    OnlyV6,
    /// The pods' range.
    Pods,
    /// The client's range, policy Local, endpoints here and elsewhere.
    ClientAndLocal,
    /// The pods' range, policy Local, the only endpoint is elsewhere.
    PodsAndAway,
    /// A range that none of the senders is in, and no endpoint.
    OthersAndNowhere,
    /// Only ranges that are none: a mistake does not open the VIP to everybody.
    Broken,
    /// The segment's IPv6 range, and an IPv4 one that is none: the IPv4 VIP stays closed.
    BrokenV4,
}

use Ingress::{
    Broken, BrokenV4, Client as OnlyClient, ClientAndLocal, Everything, NoMode, OnlyV4, OnlyV6,
    OthersAndNowhere, Overlapping, Pods, PodsAndAway, Proxy, Segment, Vip, WhiteSpace,
};

const ALL: [Ingress; 16] = [
    NoMode,
    Vip,
    Proxy,
    OnlyClient,
    Segment,
    Overlapping,
    WhiteSpace,
    Everything,
    OnlyV4,
    OnlyV6,
    Pods,
    ClientAndLocal,
    PodsAndAway,
    OthersAndNowhere,
    Broken,
    BrokenV4,
];

impl Scenario for Ingress {
    fn number(self) -> u8 {
        10 + self as u8
    }
}

impl Ingress {
    fn ranges(self) -> &'static [&'static str] {
        match self {
            NoMode | Vip | Proxy => &[],
            OnlyClient | ClientAndLocal => &["192.0.2.100/32", "2001:db8:2::100/128"],
            Segment => &["192.0.2.0/24", "2001:db8:2::/64"],
            Overlapping => &[
                "192.0.2.0/25",
                "192.0.2.64/26",
                "192.0.2.100/32",
                "192.0.2.0/25",
                "192.0.2.128/25",
                "2001:db8:2::100/128",
                "2001:db8:2::/120",
                "2001:db8:2::/64",
                "2001:db8:2:1::/64",
            ],
            WhiteSpace => &[" 192.0.2.100/32", "\t2001:db8:2::100/128  "],
            Everything => &["10.0.0.0/32", "0.0.0.0/0", "fd99::/64", "::/0"],
            OnlyV4 => &["10.0.0.0/32"],
            OnlyV6 => &["fd99::/64"],
            Pods | PodsAndAway => &["10.244.0.0/16", "fd00:244::/48"],
            OthersAndNowhere => &["10.0.0.0/32", "fd99::/64"],
            Broken => &["0.0.0.0", "::/129", "everybody"],
            BrokenV4 => &["192.0.2.0/33", "2001:db8:2::/64"],
        }
    }

    /// Whether the sender may use the VIP.
    fn admits(self, sender: Sender, family: Family) -> bool {
        let (client, pod) = (sender == Sender::Client, sender == Sender::Pod);
        match self {
            NoMode | Vip | Proxy | Everything => true,
            OnlyClient | WhiteSpace | ClientAndLocal => client,
            Segment | Overlapping | BrokenV4 => !pod,
            OnlyV4 => family == Family::V6,
            OnlyV6 => family == Family::V4,
            Pods | PodsAndAway => pod,
            Broken | OthersAndNowhere => false,
        }
    }

    fn content(self, world: &World) -> String {
        let (here, away) = (&world.lab.pod1, &world.lab.pod3);
        let mode = |mode: &str| {
            let entries = Family::ALL.map(|family| {
                let vip = ip(Frontend::LoadBalancer, family, self.number());
                format!("ip: \"{vip}\", ipMode: {mode}")
            });
            entries
                .iter()
                .fold(service(self).load_balancer(&[]), |service, entry| service.ingress(entry))
        };
        let service = match self {
            Vip => mode("VIP"),
            Proxy => mode("Proxy"),
            ClientAndLocal | PodsAndAway => service(self).spec("externalTrafficPolicy: Local"),
            _ => service(self),
        };
        let service = match self.ranges() {
            [] => service,
            ranges => service.spec(&format!("loadBalancerSourceRanges: {ranges:?}")),
        };
        let endpoints = match self {
            OthersAndNowhere => vec![],
            PodsAndAway => vec![away],
            _ => vec![here, away],
        };
        manifest(&service, &name(self), &endpoints)
    }
}

/// The table. Local traffic is detected by ClusterCIDR.
fn expected(scenario: Ingress, frontend: Frontend, sender: Sender, family: Family) -> Expected {
    use Expected::{Dropped, Masqueraded, Preserved, Refused, Skipped, Unhandled};
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use Sender::{Client, Node, OtherNode, OtherPod, Pod};
    const BOTH: &[&str] = &["pod-1", "pod-3"];
    match (scenario, frontend, sender) {
        // The other node has no route to service addresses.
        (_, ClusterIp | ExternalIp | LoadBalancer, OtherNode | OtherPod) => Skipped,
        // Ranges and modes are about VIPs only; the rest is as in `policies`. With one mode and one
        // kind of range the other frontends are looked at, too.
        (
            NoMode | Segment | Overlapping | WhiteSpace | Everything | OnlyV4 | OnlyV6 | Vip | Pods
            | Broken | BrokenV4 | OthersAndNowhere,
            ClusterIp | ExternalIp | NodePort,
            _,
        ) => Skipped,
        (Proxy | OnlyClient | ClientAndLocal, ClusterIp, Pod) => Preserved(BOTH),
        (Proxy | OnlyClient | ClientAndLocal, ClusterIp, Client | Node) => Masqueraded(BOTH),
        (PodsAndAway, ClusterIp, Pod) => Preserved(&["pod-3"]),
        (PodsAndAway, ClusterIp, Client | Node) => Masqueraded(&["pod-3"]),
        (Proxy | OnlyClient, ExternalIp, Client | Node | Pod)
        | (Proxy | OnlyClient, NodePort, Client | Node | Pod | OtherNode | OtherPod) => {
            Masqueraded(BOTH)
        }
        (ClientAndLocal | PodsAndAway, NodePort, OtherPod) => Skipped,
        (ClientAndLocal, ExternalIp | NodePort, Client | OtherNode) => Preserved(&["pod-1"]),
        (ClientAndLocal, ExternalIp | NodePort, Pod) => Preserved(BOTH),
        (ClientAndLocal, ExternalIp | NodePort, Node) => Masqueraded(BOTH),
        (PodsAndAway, ExternalIp | NodePort, Client | OtherNode) => Dropped,
        (PodsAndAway, ExternalIp | NodePort, Pod) => Preserved(&["pod-3"]),
        (PodsAndAway, ExternalIp | NodePort, Node) => Masqueraded(&["pod-3"]),

        (Proxy | Broken, LoadBalancer, Client | Node | Pod) => Unhandled,
        (BrokenV4, LoadBalancer, Client | Node | Pod) if family == Family::V4 => Unhandled,
        (_, LoadBalancer, Client | Node | Pod) if !scenario.admits(sender, family) => Dropped,
        (
            NoMode | Vip | OnlyClient | Segment | Overlapping | WhiteSpace | Everything | OnlyV4
            | OnlyV6 | Pods | BrokenV4,
            LoadBalancer,
            Client | Node | Pod,
        ) => Masqueraded(BOTH),
        (ClientAndLocal, LoadBalancer, Client) => Preserved(&["pod-1"]),
        (ClientAndLocal, LoadBalancer, Pod) => Preserved(BOTH),
        (ClientAndLocal, LoadBalancer, Node) => Masqueraded(BOTH),
        (PodsAndAway, LoadBalancer, Client) => Dropped,
        (PodsAndAway, LoadBalancer, Pod) => Preserved(&["pod-3"]),
        (PodsAndAway, LoadBalancer, Node) => Masqueraded(&["pod-3"]),
        (OthersAndNowhere, LoadBalancer, Client | Node | Pod) => Refused,
    }
}

#[test]
fn modes_and_ranges_decide_who_may_use_a_vip() -> Result<()> {
    let world = World::new()?;
    for scenario in ALL {
        world.manifests.write(&format!("{}.yaml", name(scenario)), scenario.content(&world))?;
    }
    let _agent = world.start()?;
    check(&world, &ALL, |cell| expected(cell.scenario, cell.frontend, cell.sender, cell.family));
    Ok(())
}

/// Where the node itself has the VIP, it uses that as its source when it talks to it.
#[test]
fn the_node_may_use_the_vip_as_its_source_where_its_own_address_is_in_a_range() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    lab.node.ip("addr add 203.0.113.80/32 dev lo\n\
         addr add 203.0.113.81/32 dev lo\n\
         addr add 203.0.113.82/32 dev lo\n\
         addr add 2001:db8:113::82/128 dev lo nodad\n\
         addr add 2001:db8:113::80/128 dev lo nodad\n\
         addr add 2001:db8:113::81/128 dev lo nodad")?;
    let restricted = |name: &str, number: u8, ranges: &str| {
        on_all_protocols(Service::new(name), 80, None)
            .cluster_ips(&[&format!("10.96.0.{number}"), &format!("fd00:96::{number}")])
            .load_balancer(&[&format!("203.0.113.{number}"), &format!("2001:db8:113::{number}")])
            .spec(&format!("loadBalancerSourceRanges: [{ranges}]"))
    };
    let open = restricted("open", 80, "192.0.2.10/32, '2001:db8:2::10/128'")
        .ingress("ip: 203.0.113.82")
        .ingress("ip: '2001:db8:113::82'");
    let closed = restricted("closed", 81, "192.0.2.100/32, '2001:db8:2::100/128'");
    // Behind the interface whose address a masquerade takes.
    let endpoints = [&lab.pod3];
    world.manifests.write("open.yaml", manifest(&open, "open", &endpoints))?;
    world.manifests.write("closed.yaml", manifest(&closed, "closed", &endpoints))?;
    let _agent = world.start()?;
    for ips in [
        ["192.0.2.10", "203.0.113.80", "203.0.113.82", "203.0.113.81"],
        ["2001:db8:2::10", "2001:db8:113::80", "2001:db8:113::82", "2001:db8:113::81"],
    ] {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse()).collect::<Result<_, _>>()?;
        let &[own, open, other, closed] = &ips[..] else { unreachable!("four addresses") };
        for protocol in Protocol::ALL {
            let probe = |source: IpAddr, to: IpAddr| {
                lab.from(&lab.node).probe(protocol, SocketAddr::new(to, 80)).source(source)
            };
            for source in [own, open, other] {
                probe(source, open).reaches(&["pod-3"]).source_masqueraded();
            }
            for source in [own, open, closed] {
                probe(source, closed).dropped();
            }
            // The VIP of another Service is nobody special.
            probe(closed, open).dropped();
            let client = lab.from(&lab.client).probe(protocol, SocketAddr::new(closed, 80));
            client.reaches(&["pod-3"]).source_masqueraded();
        }
    }
    Ok(())
}

#[test]
fn ranges_change_while_the_agent_runs() -> Result<()> {
    let world = World::new()?;
    let client = world.lab.from(&world.lab.client);
    let write = |ranges: &str| {
        let service = service(NoMode);
        let service = match ranges {
            "" => service,
            ranges => service.spec(&format!("loadBalancerSourceRanges: [{ranges}]")),
        };
        world.manifests.write("web.yaml", manifest(&service, &name(NoMode), &[&world.lab.pod1]))
    };
    write("")?;
    let _agent = world.start()?;
    let vips = ["203.0.113.10:80", "[2001:db8:113::10]:80"];
    for (ranges, admitted) in [
        ("10.0.0.0/8, 'fd99::/64'", [false, false]),
        ("10.0.0.0/8", [false, true]),
        ("10.0.0.0/8, 192.0.0.0/8, 'fd99::/64'", [true, false]),
        ("10.0.0.0/8, 192.128.0.0/9, 'fd99::/64'", [false, false]),
        ("192.0.2.0/24, 'fd99::/64', '2001:db8::/32'", [true, true]),
        ("'fd99::/64'", [true, false]),
        ("", [true, true]),
    ] {
        write(ranges)?;
        for (vip, admitted) in vips.into_iter().zip(admitted) {
            match admitted {
                true => drop(client.tcp(vip).eventually().reaches(&["pod-1"])),
                false => client.tcp(vip).eventually().dropped(),
            }
        }
    }
    Ok(())
}
