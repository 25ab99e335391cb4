//! Both encodings of an object give the same model and the same messages.

use std::sync::Arc;
use std::time::SystemTime;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use shunt_fake_apiserver::protobuf;

use crate::source::kubernetes::decoder::Decoder;
use crate::source::objects::{Encoded, Kind, Names, convert};

/// An object of JSON without the fields that are none.
fn object(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<String, Value>>())
}

/// Texts that are valid in some field, and some that are in none.
fn text() -> impl Strategy<Value = Value> {
    let known = select(vec![
        "",
        "web",
        "None",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "Cluster",
        "Local",
        "ClientIP",
        "TCP",
        "UDP",
        "SCTP",
        "tcp",
        "IPv4",
        "IPv6",
        "FQDN",
        "VIP",
        "Proxy",
        "10.96.0.1",
        "10.244.1.2",
        "fd00::1",
        "127.0.0.1",
        "10.0.0.0/8",
        "fd00::/48",
        "10.0.0.0/33",
        "InternalIP",
        "ExternalIP",
        "true",
        "node-1",
        "zone-a",
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.123456Z",
        "ToBeDeletedByClusterAutoscaler",
        "\u{e9}\u{0}\"\\\n",
    ]);
    prop_oneof![8 => known.prop_map(|text| json!(text)), 1 => ".{0,5}".prop_map(|text| json!(text))]
}

fn texts() -> impl Strategy<Value = Value> {
    vec(text(), 0..4).prop_map(Value::Array)
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (1..65_536_i32).prop_map(|number| json!(number)),
        1 => select(vec![0, -1, 65_536, i32::MAX, i32::MIN]).prop_map(|number| json!(number)),
    ]
}

fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    option::of(value)
}

fn list(item: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    vec(item, 0..4).prop_map(Value::Array)
}

/// A map with some of these keys and one that nobody reads.
fn map(keys: &'static [&'static str]) -> impl Strategy<Value = Value> {
    vec((select(keys), text()), 0..4).prop_map(|entries| {
        let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value));
        Value::Object(entries.chain([("other".to_owned(), json!("x"))]).collect())
    })
}

fn time() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(Value::Null),
        1 => (-1_000_000_000..4_000_000_000_i64).prop_map(|seconds| {
            let time = jiff::Timestamp::from_second(seconds).unwrap();
            // An empty message is Go's zero time, not the start of 1970.
            if seconds == 0 { Value::Null } else { json!(time.to_string()) }
        }),
    ]
}

fn metadata() -> impl Strategy<Value = Value> {
    const LABELS: &[&str] = &[
        "kubernetes.io/service-name",
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
        "topology.kubernetes.io/zone",
        "app",
    ];
    const ANNOTATIONS: &[&str] = &[
        "endpoints.kubernetes.io/last-change-trigger-time",
        "shunt.dev/load-balancing",
        "shunt.dev/weight",
        "service.cilium.io/weight",
        "note",
    ];
    let names = (select(vec!["web", "node-1", "a.b", "-", "", "Web"]), maybe(text()), 1..99_u32);
    let maps = (maybe(map(LABELS)), maybe(map(ANNOTATIONS)));
    (names, maps, time(), time()).prop_map(
        |((name, namespace, version), (labels, annotations), created, deleted)| {
            object([
                ("name", Some(json!(name))),
                ("namespace", namespace),
                ("resourceVersion", Some(json!(version.to_string()))),
                ("uid", Some(json!("00000000-0000-4000-8000-000000000001"))),
                ("labels", labels),
                ("annotations", annotations),
                ("creationTimestamp", Some(created)),
                ("deletionTimestamp", Some(deleted)),
                ("finalizers", Some(json!(["x"]))),
            ])
        },
    )
}

fn service() -> impl Strategy<Value = Value> {
    let port = (maybe(text()), maybe(text()), number(), maybe(number())).prop_map(
        |(name, protocol, port, node_port)| {
            object([
                ("name", name),
                ("protocol", protocol),
                ("port", Some(port)),
                ("targetPort", Some(json!("http"))),
                ("nodePort", node_port),
            ])
        },
    );
    let ingress = (maybe(text()), maybe(text()), maybe(text()))
        .prop_map(|(ip, mode, host)| object([("ip", ip), ("ipMode", mode), ("hostname", host)]));
    let addresses = (maybe(text()), maybe(texts()), maybe(texts()), maybe(texts()));
    let policies = (maybe(text()), maybe(text()), maybe(text()), maybe(number()), maybe(number()));
    (metadata(), maybe(text()), list(port), addresses, policies, list(ingress)).prop_map(
        |(metadata, type_, ports, (ip, ips, external, ranges), policies, ingress)| {
            let (internal, external_policy, affinity, timeout, health) = policies;
            let affinity_config = json!({"clientIP": object([("timeoutSeconds", timeout)])});
            json!({
                "metadata": metadata,
                "spec": object([
                    ("type", type_), ("ports", Some(ports)), ("clusterIP", ip), ("clusterIPs", ips),
                    ("externalIPs", external), ("loadBalancerSourceRanges", ranges),
                    ("internalTrafficPolicy", internal), ("externalTrafficPolicy", external_policy),
                    ("sessionAffinity", affinity), ("sessionAffinityConfig", Some(affinity_config)),
                    ("healthCheckNodePort", health), ("selector", Some(json!({"app": "web"}))),
                    ("ipFamilyPolicy", Some(json!("PreferDualStack"))),
                ]),
                "status": {"loadBalancer": {"ingress": ingress}},
            })
        },
    )
}

fn slice() -> impl Strategy<Value = Value> {
    let truth = || maybe(any::<bool>().prop_map(Value::Bool));
    let hint = || list(text().prop_map(|name| json!({"name": name})));
    let endpoint =
        ((texts(), maybe(text())), (truth(), truth(), truth()), maybe(hint()), maybe(hint()))
            .prop_map(|((addresses, node), (ready, serving, terminating), zones, nodes)| {
                let conditions =
                    [("ready", ready), ("serving", serving), ("terminating", terminating)];
                object([
                    ("addresses", Some(addresses)),
                    ("conditions", Some(object(conditions))),
                    ("nodeName", node),
                    ("zone", Some(json!("zone-a"))),
                    ("targetRef", Some(json!({"kind": "Pod", "name": "web-1"}))),
                    ("hints", Some(object([("forZones", zones), ("forNodes", nodes)]))),
                ])
            });
    let port =
        (maybe(text()), maybe(text()), maybe(number())).prop_map(|(name, protocol, port)| {
            object([("name", name), ("protocol", protocol), ("port", port)])
        });
    (metadata(), maybe(text()), list(endpoint), list(port)).prop_map(
        |(metadata, address_type, endpoints, ports)| {
            object([
                ("metadata", Some(metadata)),
                ("addressType", address_type),
                ("endpoints", Some(endpoints)),
                ("ports", Some(ports)),
            ])
        },
    )
}

fn node() -> impl Strategy<Value = Value> {
    let taint = text().prop_map(|key| json!({"key": key, "effect": "NoSchedule"}));
    let address = (text(), text()).prop_map(|(t, address)| json!({"type": t, "address": address}));
    (metadata(), maybe(text()), maybe(texts()), list(taint), list(address)).prop_map(
        |(metadata, cidr, cidrs, taints, addresses)| {
            json!({
                "metadata": metadata,
                "spec": object([
                    ("podCIDR", cidr), ("podCIDRs", cidrs), ("taints", Some(taints)),
                    ("providerID", Some(json!("aws:///x"))),
                ]),
                "status": {
                    "addresses": addresses, "capacity": {"cpu": "4"},
                    "nodeInfo": {"kubeletVersion": "v1.36.0"},
                },
            })
        },
    )
}

fn service_cidr() -> impl Strategy<Value = Value> {
    (metadata(), texts())
        .prop_map(|(metadata, cidrs)| json!({"metadata": metadata, "spec": {"cidrs": cidrs}}))
}

fn any_object() -> impl Strategy<Value = (Kind, Value)> {
    prop_oneof![
        service().prop_map(|object| (Kind::Service, object)),
        slice().prop_map(|object| (Kind::EndpointSlice, object)),
        node().prop_map(|object| (Kind::Node, object)),
        service_cidr().prop_map(|object| (Kind::ServiceCidr, object)),
    ]
}

fn encode(kind: Kind, object: &Value) -> Vec<u8> {
    let named = |other: &shunt_fake_apiserver::Kind| other.as_str() == kind.as_str();
    let kind = shunt_fake_apiserver::Kind::ALL.into_iter().find(named).unwrap();
    protobuf::object(kind, object)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn both_encodings_give_the_same_model((kind, object) in any_object()) {
        let json = object.to_string();
        let message = encode(kind, &object);
        let of_json = convert(kind, &Encoded::Json(&json), &mut Names::new()).unwrap();
        let of_protobuf = convert(kind, &Encoded::Protobuf(message.clone().into()), &mut Names::new()).unwrap();
        prop_assert_eq!(of_json, of_protobuf);

        let decoder = || {
            Decoder::new(kind, Arc::from("node-1"), Arc::default(), SystemTime::UNIX_EPOCH)
        };
        let (json, message) = (Encoded::Json(&json), Encoded::Protobuf(message.into()));
        prop_assert_eq!(decoder().take(&json), decoder().take(&message));
        if object["metadata"]["name"] != "" {
            prop_assert_eq!(decoder().take_gone(&json), decoder().take_gone(&message));
        }
    }
}
