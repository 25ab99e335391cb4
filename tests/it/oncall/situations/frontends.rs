//! Destinations that are none of a Service, of another one, or restricted; and Services without a
//! frontend.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{Echo, Host, Service};

use super::{From, Packet, ROW, Row, Says, TCP, To, UDP, V4, V6, check, explain};
use crate::table::{self, Family, Frontend, ip, service_of};
use crate::world::{SHUNT, World, cluster_ip_service, slices};

const RANGES: u8 = 40;
const PROXY: u8 = 41;
const WEB: u8 = 42;
const V4_ONLY: u8 = 43;
const OLDER: u8 = 44;
const YOUNGER: u8 = 45;
const CLAIMS_CLUSTER_IP: u8 = 46;
const VICTIM: u8 = 47;
const OTHER_PROXY: u8 = 49;
const UNSERVED: u8 = 50;
const ELSEWHERE: u8 = 51;
const HERE: u8 = 52;

/// The address of a listener of the node in a ServiceCIDR, as a DNS cache has one.
const OF_NODE: [&str; 2] = ["10.96.0.200", "fd00:96::200"];
const OF_NODE_PORT: u16 = 8053;

const SERVICE_CIDR: &str = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
    metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, 'fd00:96::/112']}\n";

const ROWS: &[Row] = &[
    Row {
        situation: "source ranges exclude the client",
        to: To::vip(RANGES),
        says: Says::Dropped,
        codes: &["source-not-allowed"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "source ranges exclude the node",
        from: From::Node,
        to: To::vip(RANGES),
        says: Says::Dropped,
        codes: &["source-not-allowed"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "source ranges contain the pod",
        from: From::Pod2,
        to: To::vip(RANGES),
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "source ranges do not concern the ExternalIP",
        to: To::external_ip(RANGES),
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "ipMode is Proxy",
        to: To::vip(PROXY),
        says: Says::NotAService,
        codes: &["ip-mode-proxy"],
        packet: Packet::Untouched,
        ..ROW
    },
    Row {
        situation: "a node port on an address that nodePortAddresses do not select",
        to: To::At("192.0.2.11", "2001:db8:2::11", 30112),
        says: Says::NotAService,
        codes: &["node-port-address-not-selected"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port on loopback",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", 30112),
        says: Says::NotAService,
        codes: &["node-port-address-not-selected"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port from another node",
        from: From::Node2,
        to: To::node_port(WEB),
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a node port on the address of another node",
        from: From::Pod1,
        to: To::At("192.0.2.20", "2001:db8:2::20", 30112),
        says: Says::NotAService,
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a port of the node that is no node port",
        to: To::Port(Frontend::NodePort, WEB, 30999),
        says: Says::NotAService,
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a port that the ClusterIP does not have",
        to: To::Port(Frontend::ClusterIp, WEB, 81),
        says: Says::Refused,
        codes: &["port-not-in-service"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a port that the ExternalIP does not have",
        to: To::Port(Frontend::ExternalIp, WEB, 81),
        says: Says::NotAService,
        codes: &["port-not-in-service"],
        packet: Packet::Untouched,
        ..ROW
    },
    Row {
        situation: "an unused address of a ServiceCIDR",
        from: From::Pod1,
        to: To::At("10.96.7.7", "fd00:96::77", 80),
        says: Says::Dropped,
        codes: &["address-without-service"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "an address outside of the ServiceCIDRs",
        to: To::At("10.101.0.7", "fd00:96::5:7", 80),
        says: Says::NotAService,
        packet: Packet::Untouched,
        ..ROW
    },
    Row {
        situation: "the address of a pod",
        from: From::Pod1,
        to: To::At("10.244.0.12", "fd00:244::12", 8080),
        says: Says::NotAService,
        packet: Packet::Answered(&["pod-2"]),
        ..ROW
    },
    Row {
        situation: "the IPv6 address of an IPv4 Service",
        to: To::cluster_ip(V4_ONLY),
        families: V6,
        says: Says::Dropped,
        codes: &["address-without-service"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "an ExternalIP that two Services claim",
        to: To::external_ip(OLDER),
        codes: &["claimed-by-other-service"],
        masquerade: "external-cluster-policy",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a ClusterIP that another Service claims as ExternalIP",
        to: To::cluster_ip(VICTIM),
        codes: &["claimed-by-other-service"],
        masquerade: "not-local",
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a ClusterIP of another proxy",
        to: To::cluster_ip(OTHER_PROXY),
        says: Says::Dropped,
        codes: &["ignored-other-proxy"],
        packet: Packet::Silent,
        ..ROW
    },
    Row {
        situation: "an ExternalIP of another proxy",
        to: To::external_ip(OTHER_PROXY),
        says: Says::NotAService,
        codes: &["ignored-other-proxy"],
        ..ROW
    },
    Row {
        situation: "a node port of another proxy",
        to: To::node_port(OTHER_PROXY),
        says: Says::NotAService,
        codes: &["ignored-other-proxy"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "the node itself listens on an address of a ServiceCIDR",
        to: To::At(OF_NODE[0], OF_NODE[1], OF_NODE_PORT),
        says: Says::NotAService,
        codes: &["address-without-service"],
        packet: Packet::Answered(&["node-1"]),
        ..ROW
    },
];

fn name(number: u8) -> String {
    format!("service-{number}")
}

fn objects(world: &World) -> Vec<(String, String)> {
    let [pod1, pod2] = [&world.lab.pod1, &world.lab.pod2];
    let plain = |number: u8| service_of(&name(number), number);
    let born = |year: u16| format!("creationTimestamp: {year}-01-01T00:00:00Z");
    let with = |number: u8, service: Service, pod: &Host| {
        (name(number), format!("{service}{}", slices(&name(number), &[pod])))
    };
    let vips = Family::ALL.map(|family| {
        let vip = ip(Frontend::LoadBalancer, family, PROXY);
        format!("ip: \"{vip}\", ipMode: Proxy")
    });
    let proxy = plain(PROXY).load_balancer(&[]).ingress(&vips[0]).ingress(&vips[1]);
    let victim = Family::ALL.map(|family| ip(Frontend::ClusterIp, family, VICTIM).to_string());
    let contested = Family::ALL.map(|family| ip(Frontend::ExternalIp, family, OLDER).to_string());
    let cluster_ip = |number: u8| ip(Frontend::ClusterIp, Family::V4, number).to_string();
    let no_frontend = |service: Service, name: &str| (name.to_owned(), service.to_string());
    vec![
        with(
            RANGES,
            plain(RANGES).spec("loadBalancerSourceRanges: [10.244.0.0/16, 'fd00:244::/48']"),
            pod1,
        ),
        with(PROXY, proxy, pod1),
        with(WEB, plain(WEB), pod1),
        with(V4_ONLY, cluster_ip_service(&name(V4_ONLY), &[&cluster_ip(V4_ONLY)]), pod1),
        with(OLDER, plain(OLDER).metadata(&born(2020)), pod1),
        with(
            YOUNGER,
            plain(YOUNGER).metadata(&born(2021)).external_ips(&[&contested[0], &contested[1]]),
            pod2,
        ),
        with(
            CLAIMS_CLUSTER_IP,
            plain(CLAIMS_CLUSTER_IP).metadata(&born(2019)).external_ips(&[&victim[0], &victim[1]]),
            pod2,
        ),
        with(VICTIM, plain(VICTIM).metadata(&born(2020)), pod1),
        with(
            OTHER_PROXY,
            plain(OTHER_PROXY).label("service.kubernetes.io/service-proxy-name", "other"),
            pod1,
        ),
        no_frontend(cluster_ip_service("headless", &["None"]), "headless"),
        no_frontend(cluster_ip_service("no-cluster-ip", &[]), "no-cluster-ip"),
        (
            "external-name".to_owned(),
            "---\napiVersion: v1\nkind: Service\n\
             metadata: {name: external-name, namespace: default}\n\
             spec: {type: ExternalName, externalName: example.org}\n"
                .to_owned(),
        ),
    ]
}

fn world() -> Result<World> {
    let world = World::new()?;
    world.manifests.write("cidr.yaml", SERVICE_CIDR)?;
    for (name, content) in objects(&world) {
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    world.lab.node.ip(&format!(
        "addr add {}/32 dev lo\naddr add {}/128 dev lo nodad",
        OF_NODE[0], OF_NODE[1]
    ))?;
    Ok(world)
}

#[test]
fn destinations_without_a_delivery_are_explained() -> Result<()> {
    let world = world()?;
    let _server = Echo::on(&world.lab.node, OF_NODE_PORT)?;
    let _agent = world.start()?;
    check(&world, ROWS)
}

/// With node ports of TCP on loopback addresses.
const ON_LOOPBACK: &[Row] = &[
    Row {
        situation: "a node port on loopback, served by the proxy",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", 30112),
        over: TCP,
        codes: &["loopback-proxy"],
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
    Row {
        situation: "a node port of another protocol on loopback",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", 30112),
        over: UDP,
        says: Says::NotAService,
        codes: &["node-port-address-not-selected"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port on another loopback address",
        from: From::Node,
        to: To::At("127.0.0.2", "::1", 30112),
        families: V4,
        over: TCP,
        says: Says::NotAService,
        codes: &["node-port-address-not-selected"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port on loopback without endpoints",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", table::node_port(UNSERVED)),
        over: TCP,
        says: Says::Refused,
        codes: &["no-endpoints"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port on loopback, policy Local, endpoints elsewhere",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", table::node_port(ELSEWHERE)),
        over: TCP,
        says: Says::Refused,
        codes: &["no-local-endpoints"],
        packet: Packet::Refused,
        ..ROW
    },
    Row {
        situation: "a node port on loopback, policy Local, endpoints here and elsewhere",
        from: From::Node,
        to: To::At("127.0.0.1", "::1", table::node_port(HERE)),
        over: TCP,
        codes: &["loopback-proxy"],
        unused: &[("pod-3", "not-local")],
        packet: Packet::Answered(&["pod-1"]),
        ..ROW
    },
];

#[test]
fn node_ports_on_loopback_are_explained() -> Result<()> {
    let world = world()?;
    let unserved = service_of("unserved", UNSERVED);
    world.manifests.write("unserved.yaml", unserved)?;
    let (pod1, pod3) = (&world.lab.pod1, &world.lab.pod3);
    for (name, number, pods) in
        [("elsewhere", ELSEWHERE, &[pod3][..]), ("here", HERE, &[pod1, pod3])]
    {
        let service = service_of(name, number).spec("externalTrafficPolicy: Local");
        let slices = slices(name, pods);
        world.manifests.write(&format!("{name}.yaml"), format!("{service}{slices}"))?;
    }
    let agent =
        world.agent("mode: nftables\nnodePortAddresses: [primary, localhost]\n")?.start()?;
    let node = world.lab.from(&world.lab.node);
    for address in ["127.0.0.1", "[::1]"] {
        node.tcp(format!("{address}:30112")).eventually().reaches(&["pod-1"]);
        let here = table::node_port(HERE);
        node.tcp(format!("{address}:{here}")).eventually().reaches(&["pod-1"]);
    }
    check(&world, ON_LOOPBACK)?;
    agent.stop()
}

/// A question by name.
struct Named {
    arguments: &'static [&'static str],
    says: Says,
    codes: &'static [&'static str],
    /// The number of frontends.
    frontends: usize,
}

const NAMED: &[Named] = &[
    Named {
        arguments: &["default/headless"],
        says: Says::NotAService,
        codes: &["ignored-headless"],
        frontends: 0,
    },
    Named {
        arguments: &["default/external-name"],
        says: Says::NotAService,
        codes: &["ignored-external-name"],
        frontends: 0,
    },
    Named {
        arguments: &["default/service-49"],
        says: Says::NotAService,
        codes: &["ignored-other-proxy"],
        frontends: 0,
    },
    Named {
        arguments: &["default/no-cluster-ip"],
        says: Says::NotAService,
        codes: &["no-cluster-ip"],
        frontends: 0,
    },
    Named {
        arguments: &["default/no-such"],
        says: Says::NotAService,
        codes: &["no-such-service"],
        frontends: 0,
    },
    // An IPv4 Service has nothing for an IPv6 client.
    Named {
        arguments: &["default/service-43", "--from=fd00:244::11"],
        says: Says::NotAService,
        codes: &["no-cluster-ip"],
        frontends: 0,
    },
    Named {
        arguments: &["default/service-43", "--from=10.244.0.12"],
        says: Says::Delivered,
        codes: &[],
        frontends: 3,
    },
    // All frontends of one port, in both families.
    Named {
        arguments: &["default/service-42:tcp"],
        says: Says::Delivered,
        codes: &[],
        frontends: 8,
    },
    // Source ranges concern the VIP alone, and the worst counts.
    Named {
        arguments: &["default/service-40:tcp", "--from=192.0.2.100"],
        says: Says::Dropped,
        codes: &["source-not-allowed"],
        frontends: 4,
    },
    // The lost frontends are explained, too: they belong to the other Service.
    Named {
        arguments: &["default/service-45:udp", "--from=192.0.2.100"],
        says: Says::Delivered,
        codes: &["claimed-by-other-service"],
        frontends: 4,
    },
    Named {
        arguments: &["default/service-46:80", "--from=10.244.0.11"],
        says: Says::Delivered,
        codes: &["claimed-by-other-service"],
        frontends: 12,
    },
];

#[test]
fn services_are_explained_by_name() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    let mut failed = String::new();
    for Named { arguments, says, codes, frontends } in NAMED {
        let answer = explain(&world, arguments)?;
        let (word, status) = says.contract();
        let expected: BTreeSet<&str> = codes.iter().copied().collect();
        let all = answer.json["frontends"].as_array().map_or(0, Vec::len);
        let found = (answer.json["verdict"].as_str(), answer.status, answer.codes(), all);
        if found != (Some(word), status, expected, *frontends) {
            failed += &format!("  {arguments:?}: {found:?}, not {word} {codes:?} {frontends}\n");
        }
    }
    ensure!(failed.is_empty(), "rows of the table that do not hold:\n{failed}");
    Ok(())
}

/// The node has no IPv6 route to the ClusterIP, and its own IPv4 connections still have an answer.
#[test]
fn frontend_that_cannot_be_asked_hides_no_other() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    world.lab.node.ip("route del ::/0 via 2001:db8:2::1")?;
    let answer = explain(&world, &["default/service-42"])?;
    ensure!(answer.codes().contains("not-explained"), "{:#}", answer.json);
    ensure!((answer.json["verdict"] == "unknown") && answer.status == 1, "{:#}", answer.json);
    let frontends = answer.json["frontends"].as_array().into_iter().flatten();
    let delivered = frontends.filter(|frontend| frontend["verdict"] == "delivered");
    ensure!(delivered.count() >= 3, "{:#}", answer.json);
    Ok(())
}

/// On any machine: the node's addresses are those of the Node.
#[test]
fn manifests_are_explained_by_the_addresses_of_the_node() -> Result<()> {
    let world = world()?;
    let asked = |to: &str, more: &[&str]| -> Result<(String, Value)> {
        let manifests = format!("--manifests={}", world.manifests.path().display());
        let node = format!("--hostname-override={}", world.lab.node.name);
        let mut command = Command::new(SHUNT);
        command.args(["explain", &manifests, &node, "--output=json"]);
        let output = command.args(["--to", to]).args(more).output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let json: Value = serde_json::from_slice(&output.stdout).context(errors)?;
        let code = json["findings"][0]["code"].as_str().unwrap_or_default();
        Ok((format!("{} {code}", json["verdict"].as_str().unwrap_or_default()), json))
    };
    let six = format!("[2001:db8:2::10]:{}", table::node_port(WEB));
    let nftables = &["--proxy-mode=nftables"][..];
    let prefix = &["--nodeport-addresses=192.0.2.0/24"][..];
    let other_proxy = format!("192.0.2.10:{}", table::node_port(OTHER_PROXY));
    let cluster_ip = format!("{}:80", ip(Frontend::ClusterIp, Family::V4, OTHER_PROXY));
    for (to, more, expected) in [
        ("192.0.2.10:30112", &[][..], "delivered "),
        ("192.0.2.10:30112", nftables, "delivered "),
        ("192.0.2.10:30112", prefix, "delivered "),
        ("192.0.2.20:30112", &[], "not-a-service "),
        ("127.0.0.1:30112", nftables, "not-a-service node-port-address-not-selected"),
        (&other_proxy, &[], "not-a-service ignored-other-proxy"),
        (&cluster_ip, &[], "dropped ignored-other-proxy"),
    ] {
        let (found, json) = asked(to, more)?;
        assert_eq!(found, expected, "{to} {more:?}: {json:#}");
    }
    let (found, json) = asked(&six, &[])?;
    assert_eq!(found, "delivered ", "{json:#}");
    world.manifests.remove("node.yaml")?;
    let (found, json) = asked("192.0.2.10:30112", &[])?;
    assert_eq!(found, "not-a-service node-port-address-not-selected", "{json:#}");
    let summary = json["summary"].as_str().unwrap_or_default();
    assert!(
        summary.ends_with(&format!("manifests have no Node {}", world.lab.node.name)),
        "{summary}"
    );
    Ok(())
}
