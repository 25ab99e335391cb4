//! Cases for the conversions, written as manifests.

use shunt_core::model::{EndpointSlice, Ignored, Node, Service, TrafficPolicy};

use super::*;
use crate::source::spanned_yaml::documents;

fn converted(kind: Kind, yaml: &str) -> Converted {
    let document = documents(yaml.as_bytes()).unwrap().next().unwrap().unwrap();
    convert(kind, &Encoded::Json(document.json()), &mut Names::new()).unwrap()
}

fn convert_service(yaml: &str) -> Converted {
    converted(Kind::Service, yaml)
}

/// A Service with more lines of `spec`.
fn with_spec(lines: &str) -> Converted {
    let ports = if lines.contains("ports:") { "" } else { "ports: [{port: 80}]" };
    let ip = if lines.contains("clusterIP") { "" } else { "clusterIP: 10.96.0.1" };
    convert_service(&format!(
        "metadata: {{name: web}}\nspec:\n  {ip}\n  {ports}\n  {}\n",
        lines.replace('\n', "\n  ")
    ))
}

fn good_service(converted: Converted) -> Service {
    match converted.change {
        Some(Change::Service(service)) => (*service).clone(),
        other => panic!("{other:?}, {:?}", converted.problems),
    }
}

fn messages(converted: &Converted) -> Vec<String> {
    converted.problems.iter().map(ToString::to_string).collect()
}

fn assert_problems(converted: &Converted, expected: &[&str]) {
    let messages = messages(converted);
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.contains(expected), "{message}\ndoes not contain\n{expected}");
    }
}

fn ips(texts: &[&str]) -> Vec<std::net::IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_service_with_everything() {
    let converted = convert_service(
        "
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: 2026-01-02T03:04:05Z
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, fd00::1]
  externalIPs: [192.0.2.1, 192.0.2.1, 2001:db8::1]
  loadBalancerSourceRanges: [' 10.1.2.3/8 ', 2001:db8::/32]
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  healthCheckNodePort: 32000
  ports:
  - {name: http, port: 80, nodePort: 30080, targetPort: web}
  - {name: dns, port: 53, protocol: UDP}
status:
  loadBalancer:
    ingress:
    - {ip: 198.51.100.1}
    - {ip: 198.51.100.2, ipMode: VIP}
    - {ip: 198.51.100.3, ipMode: Proxy}
    - {hostname: lb.example}
",
    );
    assert_problems(&converted, &[]);
    assert_eq!(converted.key.to_string(), "Service shop/web");
    let service = good_service(converted);
    assert_eq!(service.created, Some(1_767_323_045));
    assert_eq!(service.cluster_ips, ips(&["10.96.0.1", "fd00::1"]));
    assert_eq!(service.external_ips, ips(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(service.load_balancer_ips, ips(&["198.51.100.1", "198.51.100.2"]));
    let ranges: Vec<String> = service.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/8", "2001:db8::/32"]);
    assert_eq!(service.internal_policy, TrafficPolicy::Local);
    assert_eq!(service.external_policy, TrafficPolicy::Local);
    assert_eq!(service.affinity_seconds, Some(10_800));
    assert_eq!(service.health_check_node_port, Some(32_000));
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|p| (&*p.name, p.protocol.to_string(), p.port, p.node_port))
        .collect();
    assert_eq!(ports, [("http", "tcp".into(), 80, Some(30_080)), ("dns", "udp".into(), 53, None)]);
}

#[test]
fn defaults_and_nulls() {
    let service = good_service(convert_service(
        "
metadata: {name: 1web, namespace: null, labels: null, creationTimestamp: null}
spec: {type: null, clusterIP: 10.96.0.1, clusterIPs: null, externalIPs: null, sessionAffinity: null,
       sessionAffinityConfig: null, ports: [{port: 80, name: null, protocol: null, nodePort: null}]}
status: null
",
    ));
    assert_eq!(service.name.to_string(), "default/1web");
    assert_eq!(service.created, None);
    assert_eq!(service.cluster_ips, ips(&["10.96.0.1"]));
    assert_eq!(service.internal_policy, TrafficPolicy::Cluster);
    assert_eq!(service.affinity_seconds, None);
    assert_eq!(service.ports[0].protocol, shunt_core::model::Protocol::Tcp);
}

#[test]
fn services_of_others_are_ignored_with_the_reason_and_without_a_problem() {
    for (yaml, reason) in [
        ("metadata: {name: a}\nspec: {clusterIP: None}", Ignored::Headless),
        ("metadata: {name: a}\nspec: {clusterIPs: [None]}", Ignored::Headless),
        (
            "metadata: {name: a}\nspec: {type: ExternalName, externalName: x.example}",
            Ignored::ExternalName,
        ),
    ] {
        let converted = convert_service(yaml);
        assert_problems(&converted, &[]);
        assert!(!converted.is_refused());
        assert_eq!(converted.into_change(), ignored("default", reason), "{yaml}");
    }
    let spec = "spec: {clusterIP: 10.96.0.1, externalIPs: [oops], ports: [{port: 80}]}";
    let Change::Service(own) =
        convert_service(&format!("metadata: {{name: a}}\n{spec}")).into_change()
    else {
        unreachable!()
    };
    let labels = "labels: {service.kubernetes.io/service-proxy-name: x}";
    let converted = convert_service(&format!("metadata: {{name: a, {labels}}}\n{spec}"));
    assert_problems(&converted, &[]);
    let other = Ignored::OtherProxy("x".into(), own);
    assert_eq!(converted.into_change(), ignored("default", other));
    let converted = convert_service("metadata: {name: a}\nspec: {ports: [{port: 80}]}");
    assert!(!converted.is_refused());
    assert_problems(&converted, &["there is no ClusterIP"]);
    assert_eq!(converted.change, Some(ignored("default", Ignored::NoClusterIp)));
}

fn ignored(namespace: &str, reason: Ignored) -> Change {
    Change::ServiceIgnored(ObjectName::new(namespace, "a"), reason)
}

#[test]
fn errors_leave_a_service_out_with_all_its_problems() {
    for (spec, expected) in [
        ("clusterIP: 10.96.0.999", &["spec.clusterIP = 10.96.0.999: not an IP address"][..]),
        ("clusterIP: 127.0.0.1", &["a loopback address"]),
        ("clusterIP: ::ffff:10.0.0.1", &["write 10.0.0.1"]),
        ("clusterIPs: [10.96.0.1, 10.96.0.2]", &["spec.clusterIPs[1] = 10.96.0.2: a second"]),
        ("clusterIP: 10.96.0.1\nclusterIPs: [10.96.0.2]", &["must be the same as the first"]),
        ("type: clusterip", &["spec.type = clusterip: not a type of Service"]),
        ("ports: []", &["spec.ports: a Service needs at least one port"]),
        (
            "ports: [{port: 0, protocol: tcp}, {port: 65536, name: b}]",
            &[
                "ports[0].protocol = tcp: protocols are written in uppercase",
                "ports[0].port = 0",
                "ports[1].port = 65536",
            ],
        ),
        ("ports: [{name: a}]", &["spec.ports[0].port: a port needs a number"]),
        ("ports: [{port: 80, name: a_b}]", &["spec.ports[0].name = a_b"]),
        ("ports: [{port: 1}, {port: 2, name: b}]", &["ports[0].name: each of several ports"]),
        (
            "ports: [{port: 1, name: a}, {port: 1, name: a}]",
            &["another port has this name", "another port has this number"],
        ),
        (
            "type: NodePort\nports: [{port: 1, name: a, nodePort: 3}, {port: 2, name: b, nodePort: 3}]",
            &["ports[1].nodePort = 3: another port has this node port"],
        ),
        ("type: NodePort\nports: [{port: 1, nodePort: 99999}]", &["spec.ports[0].nodePort"]),
        ("internalTrafficPolicy: local", &["spec.internalTrafficPolicy = local"]),
        ("externalTrafficPolicy: x", &["spec.externalTrafficPolicy"]),
        ("sessionAffinity: Cookie", &["spec.sessionAffinity"]),
        (
            "sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 90000}}",
            &["spec.sessionAffinityConfig.clientIP.timeoutSeconds = 90000"],
        ),
        (
            "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: -1",
            &["spec.healthCheckNodePort"],
        ),
    ] {
        let converted = with_spec(spec);
        assert_problems(&converted, expected);
        assert!(converted.is_refused(), "{spec}");
        assert!(messages(&converted)[0].ends_with("(the Service is left out)"));
        let Change::ServiceIgnored(_, Ignored::Invalid(reason)) = converted.into_change() else {
            panic!("{spec}: the change is another one");
        };
        assert!(reason.contains(expected[0]), "{spec}: {reason}");
    }
    let long = "x".repeat(300);
    let converted =
        convert_service(&format!("metadata: {{name: {long}}}\nspec: {{clusterIP: None}}"));
    assert_problems(&converted, &["longer than 253 characters"]);
    assert!(messages(&converted)[0].len() < 400);
    assert_problems(&convert_service("spec: {clusterIP: None}"), &["a Service needs a name"]);
}

#[test]
fn parts_of_a_service_are_ignored_by_themselves() {
    let converted = with_spec("externalIPs: [1.2.3.4, 1.2.3.400, 169.254.0.1]");
    assert_problems(
        &converted,
        &["spec.externalIPs[1] = 1.2.3.400: not an IP", "spec.externalIPs[2]"],
    );
    assert_eq!(good_service(converted).external_ips, ips(&["1.2.3.4"]));

    let converted = with_spec("ports: [{port: 80, nodePort: 30000}]");
    assert_problems(&converted, &["only Services of type NodePort or LoadBalancer"]);
    assert_eq!(good_service(converted).ports[0].node_port, None);

    let converted = with_spec("type: NodePort");
    assert_problems(&converted, &["there is no node port"]);
    assert!(converted.change.is_some());

    let with_ranges = |ranges: &str| {
        convert_service(&format!(
            "metadata: {{name: a}}
spec: {{clusterIP: 10.0.0.1, ports: [{{port: 1}}], loadBalancerSourceRanges: [{ranges}]}}
status: {{loadBalancer: {{ingress: [{{ip: 1.2.3.4}}, {{ip: x}}, {{ip: 1.2.3.5, ipMode: vip}}]}}}}"
        ))
    };
    let converted = with_ranges("10.0.0.0/8, x");
    assert_problems(
        &converted,
        &[
            "status.loadBalancer.ingress[1].ip = x",
            "status.loadBalancer.ingress[2].ipMode = vip",
            "spec.loadBalancerSourceRanges[1] = x",
        ],
    );
    let converted = good_service(converted);
    assert_eq!(converted.load_balancer_ips, ips(&["1.2.3.4"]));
    assert_eq!(converted.source_ranges.len(), 1);

    // An invalid range does not mean "everyone", also beside a valid one of the other family.
    for ranges in ["10.0.0.0", "10.0.0.0/33, 'fd00::/8'"] {
        let converted = good_service(with_ranges(ranges));
        assert_eq!(converted.load_balancer_ips, ips(&[]), "{ranges:?}");
    }
}

#[test]
fn invalid_time_leaves_an_object_out() {
    let yaml = "metadata: {name: a, creationTimestamp: yesterday}";
    let converted = convert_service(yaml);
    assert!(converted.is_refused());
    assert_problems(
        &converted,
        &["Service default/a: metadata.creationTimestamp: not a time such as 2026-01-31T12:00:00Z"],
    );
}

#[test]
fn annotation_that_is_not_utf8_costs_nothing() {
    let json = r#"{"metadata": {"name": "a", "annotations": {"shunt.dev/weight": "7", "x": "?"}},
        "addressType": "IPv4"}"#;
    let json = serde_json::from_str(json).unwrap();
    let mut message =
        shunt_fake_apiserver::protobuf::object(shunt_fake_apiserver::Kind::EndpointSlice, &json);
    let value = message.iter().rposition(|byte| *byte == b'?').unwrap();
    message[value] = 0xff;
    let message = prost::bytes::Bytes::from(message);
    let slice = good_slice(
        convert(Kind::EndpointSlice, &Encoded::Protobuf(message), &mut Names::new()).unwrap(),
    );
    assert_eq!(slice.weight, Some(7));
}

#[test]
fn many_problems_are_counted_not_listed() {
    let bad = "x, ".repeat(1000);
    let converted = with_spec(&format!("externalIPs: [{bad}]"));
    assert_eq!(converted.problems.len(), 51);
    assert!(messages(&converted)[50].contains("950 more problems"));
}

fn convert_slice(yaml: &str) -> Converted {
    converted(Kind::EndpointSlice, yaml)
}

fn good_slice(converted: Converted) -> EndpointSlice {
    match converted.change {
        Some(Change::Slice(slice)) => (*slice).clone(),
        other => panic!("{other:?}, {:?}", converted.problems),
    }
}

#[test]
fn a_slice_with_everything() {
    let converted = convert_slice(
        "
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}, {port: 65535, protocol: SCTP}, {port: 53, protocol: UDP}]
endpoints:
- addresses: [10.0.0.1, 10.0.0.9]
  nodeName: node-1
  conditions: {ready: false, serving: true, terminating: true}
  hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: node-1}]}
- addresses: [10.0.0.2]
  conditions: {ready: null}
- addresses: [10.0.0.3]
  nodeName: node-1
",
    );
    assert_problems(&converted, &[]);
    let slice = good_slice(converted);
    assert_eq!(slice.service_name().unwrap().to_string(), "shop/web");
    assert_eq!(slice.ports.len(), 3);
    let [a, b, c] = &slice.endpoints[..] else { panic!() };
    assert_eq!((a.ready, a.serving, a.terminating), (false, true, true));
    assert_eq!((a.zone_hints().len(), a.node_hints().len()), (2, 1));
    assert_eq!((b.ready, b.serving, b.terminating), (true, true, false));
    assert_eq!(b.node, None);
    // A name that occurs often is kept once.
    assert!(std::sync::Arc::ptr_eq(a.node.as_ref().unwrap(), c.node.as_ref().unwrap()));
    assert!(std::sync::Arc::ptr_eq(a.node.as_ref().unwrap(), &a.node_hints()[0]));
}

#[test]
fn parts_of_a_slice_are_ignored_by_themselves() {
    let converted = convert_slice(
        "
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports:
- {name: none}
- {name: zero, port: 0}
- {name: odd, port: 1, protocol: GRE}
- {name: twice, port: 1}
- {name: twice, port: 2}
endpoints:
- {addresses: [10.0.0.1]}
- {addresses: [fe80::1]}
- {addresses: ['::']}
- {addresses: []}
- {addresses: ['::ffff:10.0.0.1']}
- {}
- {addresses: [fd00::1]}
",
    );
    assert_problems(
        &converted,
        &[
            "ports[0].port: a port needs a number (this port of the slice is ignored)",
            "ports[1].port = 0",
            "ports[2].protocol = GRE",
            "ports[4].name = twice",
            "endpoints[0].addresses[0] = 10.0.0.1: not an IPv6 address",
            "endpoints[1].addresses[0] = fe80::1: a link-local address",
            "endpoints[2].addresses[0] = ::: the unspecified address",
            "endpoints[3].addresses",
            "endpoints[4].addresses[0] = ::ffff:10.0.0.1: an IPv4 address",
            "endpoints[5].addresses",
        ],
    );
    let slice = good_slice(converted);
    assert_eq!((slice.ports.len(), slice.endpoints.len()), (1, 1));
}

#[test]
fn slices_that_are_not_used() {
    for yaml in [
        "metadata: {name: a}\naddressType: FQDN\nendpoints: [{addresses: [x.example]}]",
        "metadata: {name: a, labels: {service.kubernetes.io/headless: ''}}\naddressType: IPv4",
    ] {
        let converted = convert_slice(yaml);
        assert_problems(&converted, &[]);
        assert!(matches!(converted.into_change(), Change::SliceGone(_)), "{yaml}");
    }
    for (yaml, expected) in [
        (
            "metadata: {name: a, labels: {kubernetes.io/service-name: b}}",
            "addressType: an EndpointSl",
        ),
        ("metadata: {name: a}\naddressType: ipv4", "addressType = ipv4: not an address type"),
    ] {
        let converted = convert_slice(yaml);
        assert_problems(&converted, &[expected]);
        assert!(converted.is_refused());
    }
    let orphan = convert_slice("metadata: {name: a}\naddressType: IPv4");
    assert_problems(&orphan, &["metadata.labels[kubernetes.io/service-name]: without this label"]);
    assert_eq!(good_slice(orphan).service, None);
}

fn convert_node(yaml: &str) -> (Node, Vec<String>) {
    let converted = converted(Kind::Node, yaml);
    let messages = messages(&converted);
    match converted.change {
        Some(Change::Node(node)) => (*node, messages),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes() {
    let (node, messages) = convert_node(
        "
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, fd00::/64, x]}
status:
  addresses:
  - {type: Hostname, address: node-1}
  - {type: ExternalIP, address: 203.0.113.1}
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: x}
  - {type: InternalIP, address: 2001:db8::1}
",
    );
    assert_eq!(node.addresses, ips(&["192.0.2.1", "2001:db8::1", "203.0.113.1"]));
    assert_eq!(node.pod_cidrs.len(), 2);
    assert_eq!(node.zone.as_deref(), Some("a"));
    assert!(node.eligible);
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].starts_with("Node node-1: status.addresses[3].address = x"));
    assert!(messages[1].starts_with("Node node-1: spec.podCIDRs[2] = x"));

    let (node, _) = convert_node("metadata: {name: a}\nspec: {podCIDR: 10.1.0.0/24}");
    assert_eq!(node.pod_cidrs.len(), 1);
    for yaml in [
        "metadata: {name: a, deletionTimestamp: 2026-01-01T00:00:00Z}",
        "metadata: {name: a}\nspec: {taints: [{key: x}, {key: ToBeDeletedByClusterAutoscaler}]}",
    ] {
        assert!(!convert_node(yaml).0.eligible, "{yaml}");
    }
}

#[test]
fn service_cidrs() {
    let yaml = "metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/12, x]}";
    let converted = converted(Kind::ServiceCidr, yaml);
    assert_problems(&converted, &["ServiceCIDR kubernetes: spec.cidrs[1] = x"]);
    let expected = Change::ServiceCidr("kubernetes".into(), vec!["10.96.0.0/12".parse().unwrap()]);
    assert_eq!(converted.change, Some(expected));
}
