//! Protobuf and JSON: the same objects, whatever the server speaks.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shunt::source::kubernetes::{Access, ApiSource, ContentType};
use shunt_core::model::{Balancing, Change};
use shunt_fake_apiserver::{Api, Case, Kind, Verb, both, standin_only};

use crate::world::World;

pub(crate) fn cases() -> Vec<Case> {
    let both = both![both_encodings_give_the_same_model];
    let alone = standin_only![configured_json_is_requested,];
    [both, alone].concat()
}

const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// Objects with all that the agent reads, and much that it does not.
const RICH: &str = "---
apiVersion: v1
kind: Service
metadata:
  name: rich
  labels: {app: rich}
  annotations: {note: 'text with \"quotes\" and é', shunt.dev/load-balancing: source-hash}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.50
  clusterIPs: [10.96.0.50, 'fd00:96::50']
  externalIPs: [198.51.100.50, '2001:db8:51::50']
  loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8::/32']
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31050
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 77}}
  publishNotReadyAddresses: true
  trafficDistribution: PreferClose
  allocateLoadBalancerNodePorts: true
  selector: {app: rich}
  ports:
  - {name: http, protocol: TCP, port: 80, targetPort: http, nodePort: 30050, appProtocol: kubernetes.io/h2c}
  - {name: dns, protocol: UDP, port: 53, targetPort: 5353, nodePort: 30051}
status:
  loadBalancer:
    ingress:
    - {ip: 203.0.113.50, ipMode: VIP, ports: [{port: 80, protocol: TCP}]}
    - {ip: 203.0.113.51, ipMode: Proxy}
    - {hostname: lb.example.com}
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec: {clusterIP: 10.96.0.51, ports: [{port: 1, protocol: SCTP}], sessionAffinity: ClientIP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: rich-1
  labels: {kubernetes.io/service-name: rich, endpointslice.kubernetes.io/managed-by: test}
  annotations:
    endpoints.kubernetes.io/last-change-trigger-time: '2099-01-02T03:04:05.678901Z'
    shunt.dev/weight: '7'
addressType: IPv4
ports:
- {name: http, protocol: TCP, port: 8080, appProtocol: http}
- {name: dns, protocol: UDP, port: 5353}
endpoints:
- addresses: [10.244.1.10]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: node-1
  zone: zone-a
  hostname: rich-a
  hints: {forZones: [{name: zone-a}, {name: zone-b}], forNodes: [{name: node-1}]}
  targetRef: {kind: Pod, namespace: default, name: rich-a, uid: 00000000-0000-4000-8000-000000000001}
- addresses: [10.244.1.11]
  conditions: {ready: false, serving: true, terminating: true}
- addresses: [10.244.1.12]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: rich-2, labels: {kubernetes.io/service-name: rich}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: no-number}]
endpoints: [{addresses: ['fd00:244:1::10'], conditions: {ready: false}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: stray, labels: {app: stray}}
addressType: FQDN
endpoints: [{addresses: [example.com]}]
---
apiVersion: v1
kind: Node
metadata:
  name: rich-node
  labels: {topology.kubernetes.io/zone: zone-a, kubernetes.io/os: linux}
  finalizers: [example.com/kept]
spec:
  podCIDR: 10.244.9.0/24
  podCIDRs: [10.244.9.0/24, 'fd00:244:9::/64']
  providerID: test://rich-node
  taints:
  - {key: ToBeDeletedByClusterAutoscaler, value: '1', effect: NoSchedule, timeAdded: '2026-01-02T03:04:05Z'}
status:
  capacity: {cpu: '4', memory: 8Gi}
  allocatable: {cpu: '4', memory: 8Gi}
  conditions: [{type: Ready, status: 'True', reason: Ready, message: ready, lastHeartbeatTime: '2026-01-02T03:04:05Z', lastTransitionTime: '2026-01-02T03:04:05Z'}]
  addresses:
  - {type: Hostname, address: rich-node}
  - {type: ExternalIP, address: 198.51.100.60}
  - {type: InternalIP, address: 192.0.2.60}
  - {type: InternalIP, address: '2001:db8:2::60'}
";

/// Returns what a source with these content types delivers of the first lists.
fn first_lists(world: &World, content_type: ContentType) -> Result<BTreeMap<String, Change>> {
    let access =
        Access { kubeconfig: Some(world.kubeconfig.path()), content_type, ..Access::default() };
    world.lab.node.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let source = ApiSource::new(access, "rich-node", |_| (), Arc::new(|_, _, _, _| ()))?;
            let mut changes = BTreeMap::new();
            let run = source.run(|batch| {
                let is_last = batch.changes.contains(&Change::Synced);
                let told = |change: &Change| format!("{change:?}");
                changes.extend(batch.changes.into_iter().map(|change| (told(&change), change)));
                if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            tokio::time::timeout(Duration::from_secs(30), run).await.context("no lists")?;
            Ok(changes)
        })
    })
}

fn both_encodings_give_the_same_model(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.api.put(RICH)?;
    // It stays until its finalizer goes, and begins to be deleted.
    if let Api::Kubernetes(kubernetes) = &world.api {
        kubernetes.delete(&shunt_fake_apiserver::Key::new(Kind::Node, "rich-node"))?;
    }
    let json = first_lists(&world, ContentType::Json)?;
    let protobuf = first_lists(&world, ContentType::Protobuf)?;
    for (told, change) in &json {
        // The names in a list of all names have no order, so the texts may differ.
        ensure!(protobuf.values().any(|other| other == change), "in JSON only: {told}");
    }
    assert_eq!(json.len(), protobuf.len());
    let is_rich =
        |change: &&Change| matches!(change, Change::Service(s) if &*s.name.name == "rich");
    let rich = protobuf.values().find(is_rich).context("no Service")?;
    let Change::Service(rich) = rich else { unreachable!() };
    assert_eq!((rich.cluster_ips.len(), rich.proxied_ips.len()), (2, 1));
    assert!(rich.created.is_some());
    assert_eq!(rich.balancing, Some(Balancing::SourceHash));
    let mut slices = protobuf.values().filter_map(|change| match change {
        Change::Slice(slice) => Some(slice),
        _ => None,
    });
    assert!(slices.any(|slice| slice.weight == Some(7)));
    let node = protobuf.values().find_map(|change| match change {
        Change::Node(node) => Some(node),
        _ => None,
    });
    assert!(node.is_some_and(|node| !node.eligible && node.addresses.len() == 3), "{node:?}");
    if let Api::Kubernetes(kubernetes) = &world.api {
        let none = serde_json::json!({"metadata": {"finalizers": null}});
        kubernetes.admin().patch("/api/v1/nodes/rich-node", &none)?;
    }
    Ok(())
}

/// What is accepted as the answer to each list and watch of a kind.
fn accepted(world: &World, kind: Kind) -> Result<Vec<String>> {
    let requests = world.standin()?.requests();
    let of_kind = requests.iter().filter(|request| request.kind == Some(kind));
    let of_kind = of_kind.filter(|request| matches!(request.verb, Verb::List | Verb::Watch));
    Ok(of_kind.map(|request| request.accept.clone()).collect())
}

fn configured_json_is_requested(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.agent_by_flags().arg("--kube-api-content-type=application/json");
    let _agent = agent.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    for kind in KINDS {
        world.standin()?.wait_for_watch(kind)?;
        assert_eq!(accepted(&world, kind)?, ["application/json"; 2], "{kind}");
    }
    world.mark()
}
