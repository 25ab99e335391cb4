//! Objects as a cluster has them, with all that the agent does not read.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

const CREATED: &str = "2026-01-02T03:04:05Z";

/// The n-th Service.
pub(crate) fn service(n: u32) -> Value {
    let ip = Ipv4Addr::from(0x0a60_0100 + n).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name(n), "namespace": "default", "creationTimestamp": CREATED,
            "labels": {"app.kubernetes.io/name": name(n), "app.kubernetes.io/part-of": "shop"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "selector": {"app.kubernetes.io/name": name(n)},
        },
    })
}

/// A Service with a ClusterIP and a port of TCP, and no more.
pub(crate) fn http_service(name: &str, ip: Ipv4Addr, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": ip, "clusterIPs": [ip],
            "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        },
    })
}

/// The slice of such a Service; each pod has an address and a node.
pub(crate) fn http_slice(service: &str, port: u16, pods: &[(&str, &str)]) -> Value {
    let endpoint = |(address, node): &(&str, &str)| {
        json!({
            "addresses": [address], "conditions": {"ready": true}, "nodeName": node,
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-x7k2p"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// The slice of the n-th Service.
pub(crate) fn slice(n: u32, endpoints: u32) -> Value {
    let endpoint = |e: u32| {
        let pod = n * endpoints + e;
        let ip = Ipv4Addr::from(0x0af4_0000 + pod % 0x0004_0000).to_string();
        json!({
            "addresses": [ip],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("worker-{:03}", pod % 1_000),
            "targetRef": {
                "kind": "Pod", "namespace": "default",
                "name": format!("{}-5d4f8c7b9-{e:05}", name(n)),
                "uid": format!("00000000-0000-4000-8000-{pod:012}"),
            },
            "zone": format!("zone-{}", pod % 3),
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-x7k2p", name(n)), "namespace": "default",
            "creationTimestamp": CREATED,
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": CREATED},
            "labels": {
                "app.kubernetes.io/name": name(n),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": name(n),
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
}

fn name(n: u32) -> String {
    format!("service-{n:05}")
}
