//! Services: their addresses, node ports and policies.

use anyhow::Result;
use shunt_fake_apiserver::{Key, Kind, Kubernetes};
use shunt_testbed::{EndpointSlice, Host, Protocol, Service};

use crate::world::{TARGET, World};

/// A Service with every kind of frontend in both families, for TCP and UDP, and with addresses and
/// node ports that follow from its number.
pub(crate) fn full(name: &str, number: u8) -> Service {
    with_node_ports(name, number)
        .external_ips(&[&format!("198.51.100.{number}"), &format!("2001:db8:51::{number:x}")])
        .load_balancer(&[&format!("203.0.113.{number}"), &format!("2001:db8:113::{number:x}")])
}

/// The same without external addresses.
pub(crate) fn with_node_ports(name: &str, number: u8) -> Service {
    let node_port = 30_000 + u16::from(number) * 10;
    dual(Service::new(name), number)
        .node_port("tcp", Protocol::Tcp, 80, node_port)
        .node_port("udp", Protocol::Udp, 80, node_port)
        .node_port("sctp", Protocol::Sctp, 80, node_port)
}

fn dual(service: Service, number: u8) -> Service {
    service
        .cluster_ips(&[&format!("10.96.1.{number}"), &format!("fd00:96::1:{number:x}")])
        .spec("ipFamilyPolicy: RequireDualStack")
}

/// Slices of both families for [`full`].
pub(crate) fn slices(service: &str, hosts: &[&Host]) -> String {
    slices_with(service, &hosts.iter().map(|host| (*host, READY)).collect::<Vec<_>>())
}

pub(crate) const READY: &str = "conditions: {ready: true}";

/// The same with fields for each endpoint.
pub(crate) fn slices_with(service: &str, endpoints: &[(&Host, &str)]) -> String {
    EndpointSlice::pair(service, |slice| {
        let slice = slice
            .port("tcp", Protocol::Tcp, TARGET)
            .port("udp", Protocol::Udp, TARGET)
            .port("sctp", Protocol::Sctp, TARGET);
        endpoints.iter().fold(slice, |slice, (host, fields)| slice.host(host, fields))
    })
}

/// Both policies, with endpoints here, there, in both places and nowhere.
pub(crate) fn traffic_policies(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let places: [(&str, &[&Host]); 4] = [
        ("both", &[&lab.pod1, &lab.pod3]),
        ("here", &[&lab.pod1, &lab.pod2]),
        ("there", &[&lab.pod3]),
        ("nowhere", &[]),
    ];
    for (place, hosts) in places {
        let mut number = 0;
        for internal in ["Cluster", "Local"] {
            for external in ["Cluster", "Local"] {
                number += 1;
                let name = format!("s{number}");
                let service = full(&name, number)
                    .spec(&format!("internalTrafficPolicy: {internal}"))
                    .spec(&format!("externalTrafficPolicy: {external}"));
                world.put(service)?;
                world.put(slices(&name, hosts))?;
            }
        }
        // One that is there only inside of the cluster.
        let internal = dual(Service::new("inside"), 9).port("tcp", Protocol::Tcp, 80);
        world.put(internal.spec("internalTrafficPolicy: Local"))?;
        world.put(slices("inside", hosts))?;
        world.compare(place)?;
    }
    Ok(())
}

/// Modes of load-balancer addresses, Services without node ports, names instead of addresses.
pub(crate) fn load_balancers(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let hosts = [&lab.pod1, &lab.pod2, &lab.pod3];
    for (number, policy) in [(1, "Cluster"), (2, "Local")] {
        let modes = with_node_ports(&format!("modes-{number}"), number)
            .spec(&format!("externalTrafficPolicy: {policy}"))
            .ingress(&format!("ip: 203.0.113.1{number}, ipMode: VIP"))
            .ingress(&format!("ip: 203.0.113.2{number}, ipMode: Proxy"))
            .ingress(&format!("ip: '2001:db8:113::2{number}', ipMode: Proxy"))
            .ingress("hostname: lb.example");
        let plain = dual(Service::new(&format!("plain-{number}")), 10 + number)
            .spec("allocateLoadBalancerNodePorts: false")
            .spec(&format!("externalTrafficPolicy: {policy}"))
            .port("tcp", Protocol::Tcp, 80)
            .load_balancer(&[&format!("203.0.113.3{number}"), &format!("2001:db8:113::3{number}")]);
        for (service, name) in [(modes, "modes"), (plain, "plain")] {
            world.put(service)?;
            world.put(slices(&format!("{name}-{number}"), &hosts))?;
        }
    }
    world.compare("modes")?;
    for number in [1, 2] {
        world.put(slices(&format!("modes-{number}"), &[&lab.pod3]))?;
        world.put(slices(&format!("plain-{number}"), &[&lab.pod3]))?;
    }
    world.compare("modes, endpoints elsewhere")?;
    Ok(())
}

/// `loadBalancerSourceRanges`, whatever the API server takes.
pub(crate) fn source_ranges(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let ranges = [
        "[192.0.2.0/24]",
        "[192.0.2.100/32, '2001:db8:2::100/128']",
        "['192.0.2.100/24']",
        "[' 192.0.2.100/32 ', '2001:db8:2::/64']",
        "[0.0.0.0/0]",
        "['::/0', 10.0.0.0/8]",
        "['2001:db8:2::/64']",
        "[10.244.0.0/24, 10.244.0.11/32, 10.244.0.0/16]",
        "[192.0.2.10/32]",
        "['2001:db8:2::10/128', 198.18.0.0/15]",
        "[127.0.0.0/8]",
        "['::ffff:192.0.2.0/120']",
        "[192.0.2.0/25, 192.0.2.128/25, '2001:db8::/32', '2001:db8:2::/48']",
    ];
    for (number, ranges) in (1..).zip(ranges) {
        let policy = if number % 2 == 0 { "Local" } else { "Cluster" };
        let service = full(&format!("s{number}"), number)
            .spec(&format!("externalTrafficPolicy: {policy}"))
            .spec(&format!("loadBalancerSourceRanges: {ranges}"));
        if world.put(service).is_ok() {
            world.put(slices(&format!("s{number}"), &[&lab.pod1, &lab.pod3]))?;
        }
    }
    world.compare("ranges")?;
    for number in 1..=ranges.len() {
        world.put(slices(&format!("s{number}"), &[]))?;
    }
    world.compare("ranges, no endpoints")?;
    // The node has the address of a VIP, as with some load balancers.
    for side in world.sides() {
        side.lab
            .node
            .ip("addr add 203.0.113.2/32 dev lo\naddr add 2001:db8:113::2/128 dev lo\n\
             addr add 203.0.113.9/32 dev lo\naddr add 2001:db8:113::a/128 dev lo\n")?;
    }
    for number in 1..=ranges.len() {
        world.put(slices(&format!("s{number}"), &[&lab.pod1, &lab.pod3]))?;
    }
    world.compare("ranges, VIPs on the node")?;
    Ok(())
}

/// External IPs that are the node's own, or another node's, or a VIP too.
pub(crate) fn external_ips_of_the_node(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    for (number, policy) in [(1, "Cluster"), (2, "Local")] {
        let port = 80 + u16::from(number);
        let name = format!("s{number}");
        let service = dual(Service::new(&name), number)
            .spec(&format!("externalTrafficPolicy: {policy}"))
            .node_port("tcp", Protocol::Tcp, port, 30_000 + port)
            .node_port("udp", Protocol::Udp, port, 30_000 + port)
            .load_balancer(&["203.0.113.5"])
            .external_ips(&["192.0.2.10", "192.0.2.20", "2001:db8:2::11", "203.0.113.5"]);
        world.put(service)?;
        world.put(slices(&name, &[&lab.pod1, &lab.pod3]))?;
    }
    world.compare("external IPs")?;
    for name in ["s1", "s2"] {
        world.put(slices(name, &[&lab.pod3]))?;
    }
    world.compare("external IPs, endpoints elsewhere")?;
    for name in ["s1", "s2"] {
        world.put(slices(name, &[]))?;
    }
    world.compare("external IPs, no endpoints")?;
    // Its own ClusterIP.
    for (number, policy) in [(3, "Cluster"), (4, "Local")] {
        let (name, ip) = (format!("s{number}"), format!("10.96.1.{number}"));
        let service = dual(Service::new(&name), number)
            .spec(&format!("externalTrafficPolicy: {policy}"))
            .port("tcp", Protocol::Tcp, 80)
            .port("udp", Protocol::Udp, 80);
        world.put(service.load_balancer(&[&ip]).external_ips(&[&ip]))?;
        world.put(slices(&name, &[&lab.pod1, &lab.pod3]))?;
    }
    world.compare("external IPs that are ClusterIPs")?;
    for name in ["s3", "s4"] {
        world.put(slices(name, &[&lab.pod3]))?;
    }
    world.compare("external IPs that are ClusterIPs, endpoints elsewhere")?;
    Ok(())
}

/// Headless Services, names, those of another proxy, and what becomes of all that.
pub(crate) fn services_that_are_none_of_ours(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    const LABEL: &str = "service.kubernetes.io/service-proxy-name";
    world.put(full("proxied", 1).label(LABEL, "other"))?;
    world.put(full("empty-label", 2).label(LABEL, ""))?;
    world.put(full("ours", 3))?;
    world.put(
        Service::new("headless")
            .cluster_ips(&["None"])
            .port("tcp", Protocol::Tcp, 80)
            .external_ips(&["198.51.100.40"]),
    )?;
    world.put(
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: named, namespace: default}\n\
         spec: {type: ExternalName, externalName: example.com, externalIPs: [198.51.100.41], \
         ports: [{name: tcp, port: 80}]}\n",
    )?;
    for name in ["proxied", "empty-label", "ours", "headless", "named"] {
        world.put(slices(name, &[&lab.pod1, &lab.pod3]))?;
    }
    world.compare("others")?;
    // Who is responsible changes, and what kind of Service it is.
    world.put(full("proxied", 1))?;
    world.put(full("ours", 3).label(LABEL, "other"))?;
    world.compare("responsibility moves")?;
    world.put(
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: proxied, namespace: default}\n\
         spec: {type: ExternalName, externalName: example.com}\n",
    )?;
    world.compare("a Service becomes a name")?;
    // Slices of headless Services are labelled so.
    world.put(full("labelled", 5))?;
    let slice = slices("labelled", &[&lab.pod1])
        .replace("  labels:\n", "  labels:\n    service.kubernetes.io/headless: ''\n");
    world.put(slice)?;
    world.compare("slices with the label of headless Services")?;
    Ok(())
}

/// One family or two, and from one to the other.
pub(crate) fn families(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let service = |name: &str, number: u8, ips: &[&str], policy: &str| {
        let node_port = 30_000 + u16::from(number);
        Service::new(name)
            .spec(&format!("ipFamilyPolicy: {policy}"))
            .cluster_ips(ips)
            .node_port("tcp", Protocol::Tcp, 80, node_port)
            .node_port("udp", Protocol::Udp, 80, node_port)
            .load_balancer(&[&format!("203.0.113.{number}"), &format!("2001:db8:113::{number}")])
            .external_ips(&[&format!("198.51.100.{number}"), &format!("2001:db8:51::{number}")])
    };
    world.put(service("four", 1, &["10.96.2.1"], "SingleStack"))?;
    world.put(service("six", 2, &["fd00:96::2:2"], "SingleStack").spec("ipFamilies: [IPv6]"))?;
    world.put(service("both", 3, &["10.96.2.3", "fd00:96::2:3"], "PreferDualStack"))?;
    world.put(
        service("turned", 4, &["fd00:96::2:4", "10.96.2.4"], "RequireDualStack")
            .spec("ipFamilies: [IPv6, IPv4]"),
    )?;
    for name in ["four", "six", "both", "turned"] {
        world.put(slices(name, &[&lab.pod1, &lab.pod3]))?;
    }
    world.compare("families")?;
    world.put(service("both", 3, &["10.96.2.3"], "SingleStack"))?;
    world.put(service("four", 1, &["10.96.2.1", "fd00:96::2:1"], "RequireDualStack"))?;
    world.compare("a family more, a family less")?;
    world.kubernetes.delete(&Key::new(Kind::EndpointSlice, "four-v4"))?;
    world.kubernetes.delete(&Key::new(Kind::EndpointSlice, "turned-v6"))?;
    world.compare("endpoints of one family only")?;
    Ok(())
}

/// Names of ports, the same number for several protocols, a port that goes elsewhere.
pub(crate) fn ports(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    let service = |ports: &[(&str, Protocol, u16)]| {
        let service = Service::new("s").cluster_ips(&["10.96.3.1"]).external_ips(&["198.51.100.1"]);
        ports.iter().fold(service, |s, (name, protocol, port)| s.port(name, *protocol, *port))
    };
    let both = [("t", Protocol::Tcp, 80), ("u", Protocol::Udp, 80), ("o", Protocol::Tcp, 81)];
    world.put(service(&both))?;
    let slice = |name: &str, port: u16, host: &Host| {
        EndpointSlice::v4("s").name(name).port("t", Protocol::Tcp, port).hosts(&[host])
    };
    world.put(slice("a", 8080, &lab.pod1))?;
    world.put(slice("b", 8081, &lab.pod2).port("u", Protocol::Udp, 8080))?;
    // The protocol is another one than the Service's.
    world.put(slice("c", 8080, &lab.pod3).port("o", Protocol::Udp, 8080))?;
    world.compare("ports")?;
    world.put(service(&[("t", Protocol::Tcp, 90), ("u", Protocol::Udp, 80)]))?;
    world.compare("a port moves, a port goes")?;
    world.put(service(&[("u", Protocol::Tcp, 90), ("t", Protocol::Udp, 80)]))?;
    world.compare("names change places")?;
    world.put(service(&[("", Protocol::Tcp, 80)]))?;
    world
        .put(EndpointSlice::v4("s").name("d").port("", Protocol::Tcp, 8080).hosts(&[&lab.pod3]))?;
    world.compare("no name")?;
    Ok(())
}

/// Addresses and node ports go from one Service to another.
pub(crate) fn addresses_are_used_again(kubernetes: &Kubernetes) -> Result<()> {
    let world = World::new(kubernetes)?;
    let lab = &world.shunt.lab;
    world.put(full("one", 1))?;
    world.put(slices("one", &[&lab.pod1, &lab.pod3]))?;
    world.put(slices("two", &[&lab.pod2]))?;
    world.compare("one")?;
    for round in 0..3 {
        let (old, new) = if round % 2 == 0 { ("one", "two") } else { ("two", "one") };
        kubernetes.delete(&Key::new(Kind::Service, old))?;
        world.put(full(new, 1).spec("externalTrafficPolicy: Local"))?;
        world.compare("the other one")?;
    }
    for name in ["one", "two"] {
        let _ = kubernetes.delete(&Key::new(Kind::Service, name));
    }
    world.compare("none")?;
    Ok(())
}
