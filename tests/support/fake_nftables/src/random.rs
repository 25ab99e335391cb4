//! Random changes of a small cluster. The addresses are those of the testbed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use shunt_core::model::{
    Balancing, Change, EndpointPort, Family, Hints, Kind, Node, ObjectName, Protocol, Service,
    ServicePort, TrafficPolicy,
};
use shunt_core::plan::{DetectLocal, NodePortAddresses, Options, TcpTimeouts};

use crate::cluster::{NODE, name, service, slice};

/// Few Services and few addresses, so that changes meet: the same frontend is wanted by several.
const SERVICES: u16 = 6;
const ENDPOINTS: u16 = 12;

/// What happens to a cluster.
pub fn change() -> impl Strategy<Value = Change> {
    let n = || 0..SERVICES;
    prop_oneof![
        40 => random_service().prop_map(Change::service),
        10 => n().prop_map(|n| Change::Gone(Kind::Service, name(n))),
        60 => random_slice(),
        10 => (n(), family()).prop_map(|(n, family)| Change::Gone(Kind::EndpointSlice, slice(n, family, &[]).name)),
        6 => node().prop_map(Change::node),
        1 => Just(Change::Gone(Kind::Node, ObjectName::new("", "node-1"))),
        3 => (select(vec!["kubernetes", "more"]), subsequence(nets(), 1..3))
            .prop_map(|(name, nets)| Change::ServiceCidr(ObjectName::new("", name), nets)),
        1 => Just(Change::Gone(Kind::ServiceCidr, ObjectName::new("", "more"))),
        3 => subsequence(addresses().to_vec(), 0..6)
            .prop_map(|addresses| Change::InterfaceAddresses(addresses.into_iter().collect())),
        1 => btree_set(n(), 0..6).prop_map(|services| {
            Change::Listed(Kind::Service, Arc::new(services.into_iter().map(name).collect()))
        }),
    ]
}

fn family() -> impl Strategy<Value = Family> {
    select(&Family::ALL[..])
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

fn random_service() -> impl Strategy<Value = Service> {
    // A few want an address that is the ClusterIP of another one.
    let numbers = (0..SERVICES, 0..SERVICES / 2, 0..8 * SERVICES);
    let balancing = prop_oneof![5 => Just(None), 1 => select(&Balancing::ALL[..]).prop_map(Some)];
    (numbers, policy(), policy(), any::<[bool; 6]>(), balancing).prop_map(
        |((n, address, grabbed), internal_policy, external_policy, flags, balancing)| {
            let [has_node_port, has_dns, has_vip, is_restricted, is_sticky, is_single] = flags;
            let mut service = Service { internal_policy, external_policy, balancing, ..service(n) };
            service.cluster_ips = crate::cluster::service(address).cluster_ips;
            if is_single {
                service.cluster_ips.remove(usize::from(address % 2));
            }
            let [.., low] = n.to_be_bytes();
            service.external_ips = vec![
                Ipv4Addr::new(198, 51, 100, low).into(),
                Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, n).into(),
            ];
            if grabbed < SERVICES / 2 {
                service.external_ips.extend(crate::cluster::service(grabbed).cluster_ips);
            }
            if !has_node_port {
                service.ports[0].node_port = None;
            }
            if has_dns {
                service.ports.push(ServicePort {
                    name: "dns".into(),
                    protocol: Protocol::Udp,
                    port: 53,
                    node_port: has_node_port.then_some(30_053),
                });
            }
            if has_vip {
                let vips = |last: u16| -> Vec<IpAddr> {
                    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, last);
                    vec![Ipv4Addr::new(203, 0, 113, last as u8).into(), v6.into()]
                };
                service.load_balancer_ips = vips(1);
                service.proxied_ips = vips(100 + n);
            }
            if is_sticky {
                service.affinity_seconds = Some(10_800 + u32::from(address));
            }
            if is_restricted {
                // Two of them overlap.
                let ranges = ["192.0.2.64/26", "192.0.2.100/32", "192.0.2.10/32", "10.0.0.0/9"];
                let ranges = ranges.into_iter().chain(["2001:db8:2::10/128", "fd00:244::/64"]);
                service.source_ranges = ranges.flat_map(str::parse).collect();
            }
            service
        },
    )
}

fn random_slice() -> impl Strategy<Value = Change> {
    let zone = prop_oneof![4 => Just(None), 1 => select(vec!["a", "b"]).prop_map(Some)];
    let condition =
        (prop::bool::weighted(0.8), prop::bool::weighted(0.8), prop::bool::weighted(0.9), zone);
    let endpoints = (btree_set(0..ENDPOINTS, 0..8), vec(condition, 8));
    let weight = prop_oneof![8 => Just(None), 1 => Just(Some(0)), 1 => (1..9_u16).prop_map(Some), 1 => Just(Some(300))];
    let slices = (0..SERVICES, family(), endpoints, weight);
    slices.prop_map(|(n, family, (endpoints, conditions), weight)| {
        let endpoints: Vec<u16> = endpoints.into_iter().collect();
        let mut slice = slice(n, family, &endpoints);
        slice.weight = weight;
        let states = slice.endpoints.iter_mut().zip(conditions);
        for (endpoint, (ready, serving, has_node, zone)) in states {
            endpoint.ready = ready;
            endpoint.serving = ready || serving;
            endpoint.terminating = !ready;
            endpoint.node = endpoint.node.take().filter(|_| has_node);
            endpoint.hints =
                zone.and_then(|zone| Hints::boxed([Arc::from(zone)].into(), Box::default()));
        }
        slice.ports.push(EndpointPort { name: "dns".into(), protocol: Protocol::Udp, port: 5353 });
        Change::slice(slice)
    })
}

fn node() -> impl Strategy<Value = Node> {
    (subsequence(addresses().to_vec(), 0..4), subsequence(nets(), 0..3)).prop_map(
        |(addresses, pod_cidrs)| Node {
            name: NODE.into(),
            addresses,
            pod_cidrs,
            zone: Some("a".into()),
            eligible: true,
        },
    )
}

/// Addresses of the node, one of which may use the restricted VIPs.
fn addresses() -> [IpAddr; 6] {
    [
        Ipv4Addr::LOCALHOST.into(),
        Ipv6Addr::LOCALHOST.into(),
        Ipv4Addr::new(192, 0, 2, 10).into(),
        Ipv4Addr::new(192, 0, 2, 11).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x10).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x11).into(),
    ]
}

fn nets() -> Vec<ipnet::IpNet> {
    ["10.96.0.0/16", "10.244.0.0/24", "fd00:96::/112", "fd00:244::/64"]
        .iter()
        .flat_map(|net| net.parse())
        .collect()
}

/// What a configuration may say.
pub fn options() -> impl Strategy<Value = Options> {
    let detect_local = prop_oneof![
        Just(DetectLocal::Off),
        subsequence(nets(), 0..3).prop_map(DetectLocal::ClusterCidr),
        Just(DetectLocal::NodeCidr),
        Just(DetectLocal::BridgeInterface("cni0".into())),
        Just(DetectLocal::InterfaceNamePrefix("veth".into())),
    ];
    let node_port_addresses = prop_oneof![
        Just(NodePortAddresses::default()),
        subsequence(vec!["0.0.0.0/0", "192.0.2.0/24", "2001:db8::/32"], 1..3).prop_map(|nets| {
            let nets = nets.iter().flat_map(|net| net.parse()).collect();
            NodePortAddresses { primary: false, nets }
        }),
    ];
    let node_address = proptest::option::of(select(addresses()[2..].to_vec()));
    let balancing = prop_oneof![5 => Just(Balancing::Random), 1 => Just(Balancing::SourceHash)];
    let numbers = (0_u8..32, any::<bool>(), any::<bool>(), balancing);
    (numbers, detect_local, node_port_addresses, node_address).prop_map(
        |(numbers, detect_local, node_port_addresses, node_address)| {
            let (masquerade_bit, masquerade_all, ignore_external_ips, balancing) = numbers;
            Options {
                masquerade_bit,
                masquerade_all,
                detect_local,
                node_port_addresses,
                node_address,
                ignore_external_ips,
                balancing,
                reset_gone_endpoints: false,
                requires_node: false,
                tcp_timeouts: Some(TcpTimeouts::default()),
                ipv4_only: false,
            }
        },
    )
}
