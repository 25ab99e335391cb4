//! Services whose endpoints are missing, not ready, of another port, or on other nodes.

use anyhow::Result;
use shunt_testbed::{EndpointSlice, Host, Node, Protocol, Service};

use super::{From, Packet, ROW, Row, Says, TCP, To, UDP, V4, V6, check};
use crate::table::{Family, service_of};
use crate::world::{TARGET, World, slices};

const NO_SLICE: u8 = 20;
const EMPTY: u8 = 21;
const UNREADY: u8 = 22;
const PORT_NAME: u8 = 23;
const PROTOCOL: u8 = 24;
const ONE_FAMILY: u8 = 25;
const FALLBACK: u8 = 26;
const TERMINATING: u8 = 27;
const ZONES: u8 = 28;
const EXTERNAL_LOCAL: u8 = 29;
const INTERNAL_LOCAL: u8 = 30;
const ITSELF: u8 = 31;
const WRONG_NODE: u8 = 32;
const NO_NODE: u8 = 33;
const CLOSED: u8 = 34;
const MIXED: u8 = 35;
const NO_NODE_LOCAL: u8 = 36;

const NOT_READY: &str = "conditions: {ready: false, serving: false, terminating: false}";
const SERVING: &str = "conditions: {ready: false, serving: true, terminating: true}";
const ENDED: &str = "conditions: {ready: false, serving: false, terminating: true}";

const ROWS: &[Row] = &[
    Row {
        situation: "no EndpointSlice",
        to: To::cluster_ip(NO_SLICE),
        says: Says::Refused,
        codes: &["no-endpoints"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "no EndpointSlice",
        from: From::Pod1,
        to: To::node_port(NO_SLICE),
        says: Says::Refused,
        codes: &["no-endpoints"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "empty EndpointSlices",
        to: To::external_ip(EMPTY),
        says: Says::Refused,
        codes: &["no-endpoints"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "no endpoint is ready",
        from: From::Node,
        to: To::cluster_ip(UNREADY),
        says: Says::Refused,
        codes: &["endpoints-not-ready"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "the EndpointSlices have another port name",
        from: From::Pod1,
        to: To::cluster_ip(PORT_NAME),
        says: Says::Refused,
        codes: &["wrong-port-name"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "the Service port is TCP, that of the EndpointSlices UDP",
        to: To::cluster_ip(PROTOCOL),
        over: TCP,
        says: Says::Refused,
        codes: &["selects-other-protocol"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "the Service port is TCP, that of the EndpointSlices UDP",
        to: To::cluster_ip(PROTOCOL),
        over: UDP,
        says: Says::Refused,
        codes: &["port-not-in-service"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "endpoints of the other family only",
        to: To::cluster_ip(ONE_FAMILY),
        families: V6,
        says: Says::Refused,
        codes: &["endpoints-other-family"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "endpoints of this family only",
        to: To::cluster_ip(ONE_FAMILY),
        families: V4,
        masquerade: "not-local",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "no endpoint is ready, but a terminating one serves",
        to: To::cluster_ip(FALLBACK),
        masquerade: "not-local",
        packet: Packet::Answered(&["pod-1"]),
        unused: &[("pod-2", "not-ready")],
        ..ROW
    },
    Row {
        situation: "all endpoints are terminating and do not serve",
        to: To::cluster_ip(TERMINATING),
        says: Says::Refused,
        codes: &["endpoints-not-ready"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "topology hints exclude an endpoint",
        from: From::Pod2,
        to: To::cluster_ip(ZONES),
        packet: Packet::Answered(&["pod-1"]),
        unused: &[("pod-3", "other-zone")],
        ..ROW
    },
    Row {
        situation: "external policy Local without a local endpoint",
        to: To::external_ip(EXTERNAL_LOCAL),
        says: Says::Dropped,
        codes: &["no-local-endpoints"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "external policy Local without a local endpoint",
        from: From::Node2,
        to: To::node_port(EXTERNAL_LOCAL),
        says: Says::Dropped,
        codes: &["no-local-endpoints"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "external policy Local without a local endpoint, short circuit",
        from: From::Pod2,
        to: To::external_ip(EXTERNAL_LOCAL),
        packet: Packet::Answered(&["pod-3"]),
        ..ROW
    },
    Row {
        situation: "external policy Local without a local endpoint, from the node",
        from: From::Node,
        to: To::vip(EXTERNAL_LOCAL),
        masquerade: "node-to-local-policy",
        packet: Packet::Answered(&["pod-3"]),
        ..ROW
    },
    Row {
        situation: "external policy Local does not concern the ClusterIP",
        to: To::cluster_ip(EXTERNAL_LOCAL),
        masquerade: "not-local",
        packet: Packet::Answered(&["pod-3"]),
        ..ROW
    },
    Row {
        situation: "internal policy Local without a local endpoint",
        from: From::Pod1,
        to: To::cluster_ip(INTERNAL_LOCAL),
        says: Says::Dropped,
        codes: &["no-local-endpoints"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "internal policy Local without a local endpoint, from the node",
        from: From::Node,
        to: To::cluster_ip(INTERNAL_LOCAL),
        says: Says::Dropped,
        codes: &["no-local-endpoints"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "internal policy Local does not concern the ExternalIP",
        to: To::external_ip(INTERNAL_LOCAL),
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-3"]),
        ..ROW
    },
    Row {
        situation: "a pod reaches itself",
        from: From::Pod1,
        to: To::cluster_ip(ITSELF),
        masquerade: "hairpin",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a pod reaches itself by an EndpointSlice without its node; another Service has it",
        from: From::Pod1,
        to: To::cluster_ip(NO_NODE),
        masquerade: "hairpin",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a pod reaches itself, and the EndpointSlice names another node",
        from: From::Pod2,
        to: To::cluster_ip(WRONG_NODE),
        over: TCP,
        says: Says::Dropped,
        codes: &["hairpin-without-masquerade"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "a pod reaches itself by IPv4 datagrams, and nothing masquerades them",
        from: From::Pod2,
        to: To::cluster_ip(WRONG_NODE),
        families: V4,
        over: UDP,
        says: Says::Dropped,
        codes: &["hairpin-without-masquerade"],
        packet: Packet::Silent,
        ..ROW
    },
    // IPv6 takes packets whose source is the receiver; the answer has the wrong source.
    Row {
        situation: "a pod reaches itself by IPv6 datagrams, and nothing masquerades them",
        from: From::Pod2,
        to: To::cluster_ip(WRONG_NODE),
        families: V6,
        over: UDP,
        says: Says::Unknown,
        codes: &["hairpin-without-masquerade"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "endpoints without nodeName",
        from: From::Pod2,
        to: To::cluster_ip(NO_NODE),
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "endpoints without nodeName under policy Local",
        to: To::node_port(NO_NODE_LOCAL),
        says: Says::Dropped,
        codes: &["no-local-endpoints"],
        packet: Packet::Silent,
        ..ROW
    },
    // The packet arrives; the pod answers with a reset or an ICMP error.
    Row {
        situation: "no process of the pod listens on the port",
        to: To::cluster_ip(CLOSED),
        masquerade: "not-local",
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "one of three endpoints is ready",
        from: From::Pod2,
        to: To::vip(MIXED),
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-3"]),
        unused: &[("pod-1", "not-ready"), ("pod-2", "terminating")],
        ..ROW
    },
    Row {
        situation: "SCTP",
        to: To::cluster_ip(NO_NODE),
        over: &[Protocol::Sctp],
        masquerade: "not-local",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
];

fn name(number: u8) -> String {
    format!("service-{number}")
}

/// Slices with the ports of [`service_of`].
fn pair(number: u8, fill: impl Fn(EndpointSlice) -> EndpointSlice) -> String {
    EndpointSlice::pair(&name(number), |slice| fill(crate::world::target_ports(slice)))
}

/// An endpoint without a node or with another one than the pod's.
fn endpoint(slice: EndpointSlice, pod: &Host, node: Option<&str>) -> EndpointSlice {
    let pod = Host { node: node.map(str::to_owned), ..pod.clone() };
    slice.hosts(&[&pod])
}

fn objects(world: &World) -> Vec<(u8, Service, String)> {
    let [pod1, pod2, pod3] = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let plain = |number: u8, slices: String| (number, service_of(&name(number), number), slices);
    let with = |number: u8, line: &str, slices: String| {
        (number, service_of(&name(number), number).spec(line), slices)
    };
    let on = |number: u8, pods: &[&Host]| slices(&name(number), pods);
    let external_local = "externalTrafficPolicy: Local";
    let cluster_ip = |number: u8| {
        let ips = Family::ALL.map(|family| {
            crate::table::ip(crate::table::Frontend::ClusterIp, family, number).to_string()
        });
        Service::new(&name(number)).cluster_ips(&[&ips[0], &ips[1]])
    };
    vec![
        plain(NO_SLICE, String::new()),
        plain(EMPTY, on(EMPTY, &[])),
        plain(UNREADY, pair(UNREADY, |slice| slice.host(pod1, NOT_READY).host(pod3, NOT_READY))),
        plain(
            PORT_NAME,
            EndpointSlice::pair(&name(PORT_NAME), |slice| {
                let slice = slice.port("web", Protocol::Tcp, TARGET);
                slice.port("web-udp", Protocol::Udp, TARGET).hosts(&[pod2])
            }),
        ),
        (
            PROTOCOL,
            cluster_ip(PROTOCOL).port("dns", Protocol::Tcp, 80),
            EndpointSlice::pair(&name(PROTOCOL), |slice| {
                slice.port("dns", Protocol::Udp, TARGET).hosts(&[pod1])
            }),
        ),
        plain(
            ONE_FAMILY,
            crate::world::target_ports(EndpointSlice::v4(&name(ONE_FAMILY)))
                .hosts(&[pod1])
                .to_string(),
        ),
        plain(FALLBACK, pair(FALLBACK, |slice| slice.host(pod1, SERVING).host(pod2, NOT_READY))),
        plain(TERMINATING, pair(TERMINATING, |slice| slice.host(pod1, ENDED))),
        with(
            ZONES,
            "trafficDistribution: PreferClose",
            pair(ZONES, |slice| {
                let hints = |zone: &str| {
                    format!("conditions: {{ready: true}}, hints: {{forZones: [{{name: {zone}}}]}}")
                };
                slice.host(pod1, &hints("zone-a")).host(pod3, &hints("zone-b"))
            }),
        ),
        with(EXTERNAL_LOCAL, external_local, on(EXTERNAL_LOCAL, &[pod3])),
        with(INTERNAL_LOCAL, "internalTrafficPolicy: Local", on(INTERNAL_LOCAL, &[pod3])),
        plain(ITSELF, on(ITSELF, &[pod1])),
        plain(WRONG_NODE, pair(WRONG_NODE, |slice| endpoint(slice, pod2, Some("node-2")))),
        plain(NO_NODE, pair(NO_NODE, |slice| endpoint(slice, pod1, None))),
        with(
            NO_NODE_LOCAL,
            external_local,
            pair(NO_NODE_LOCAL, |slice| endpoint(slice, pod1, None)),
        ),
        plain(
            CLOSED,
            EndpointSlice::pair(&name(CLOSED), |slice| {
                let slice = slice.port("tcp", Protocol::Tcp, 9999);
                slice.port("udp", Protocol::Udp, 9999).hosts(&[pod1])
            }),
        ),
        plain(
            MIXED,
            pair(MIXED, |slice| slice.host(pod1, NOT_READY).host(pod2, ENDED).hosts(&[pod3])),
        ),
    ]
}

#[test]
fn endpoints_that_get_no_packet_are_named_with_the_reason() -> Result<()> {
    let world = World::new()?;
    let node = Node::of(&world.lab.node).label("topology.kubernetes.io/zone", "zone-a");
    world.manifests.write("node.yaml", node)?;
    for (number, service, slices) in objects(&world) {
        let file = format!("{}.yaml", name(number));
        world.manifests.write(&file, format!("{service}{slices}"))?;
    }
    let _agent = world.start()?;
    check(&world, ROWS)
}
