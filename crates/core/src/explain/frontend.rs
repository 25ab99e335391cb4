//! A frontend as planned, with the endpoints of its service port.

use crate::model::Store;
use crate::plan::{Desired, FrontendKey, Outcome};

use super::endpoints::{EndpointView, choices_of};
use super::findings::Finding;
use super::reasons::{DROPPED, no_endpoints, no_local, target};

/// Describes a frontend, as clients without a short circuit use it: the endpoints of its service port, and
/// why none is used, if none is. Returns `None` if no Service owns it.
#[must_use]
pub fn frontend_view(
    key: FrontendKey,
    store: &Store,
    desired: &Desired,
) -> Option<(Vec<EndpointView>, Option<Finding>)> {
    let frontend = desired.frontend(key)?;
    let pool: &[_] = frontend.main_pool().map_or(&[], |pool| pool);
    let (target, endpoints) = target(key, None, store, desired, &choices_of(pool))?;
    let finding = match frontend.outcome {
        Outcome::Balance(_) => None,
        Outcome::Reject => Some(no_endpoints(store, &target, &endpoints)),
        Outcome::Drop => Some(no_local(&target, &endpoints, DROPPED)),
    };
    Some((endpoints, finding))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::explain::{Code, NotUsed};
    use crate::model::{
        Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Family, Hints, ObjectName, Protocol,
        Service, ServicePort, TrafficPolicy,
    };
    use crate::plan::Options;

    fn endpoint(octet: u8, ready: bool, node: &str) -> Endpoint {
        Endpoint {
            address: [10, 244, 0, octet].into(),
            ready,
            serving: ready,
            terminating: false,
            node: Some(node.into()),
            hints: Hints::boxed(["zone-a".into()].into(), Box::default()),
        }
    }

    fn view(
        policy: TrafficPolicy,
        endpoints: Vec<Endpoint>,
    ) -> (Vec<EndpointView>, Option<Finding>) {
        let name = ObjectName::new("shop", "checkout");
        let service = Service {
            name,
            created: None,
            cluster_ips: vec![[10, 96, 0, 1].into()],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            proxied_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            internal_policy: policy,
            external_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            balancing: None,
            health_check_node_port: None,
        };
        let slice = EndpointSlice {
            name: ObjectName::new("shop", "checkout-1"),
            service: Some("checkout".into()),
            family: Family::V4,
            weight: None,
            ports: vec![EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }],
            endpoints,
        };
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        store.apply(Change::Service(Arc::new(service)), &mut dirty);
        store.apply(Change::Slice(Arc::new(slice)), &mut dirty);
        let mut desired = Desired::new(Options::default(), "here");
        desired.update(&store, &dirty);
        let key = FrontendKey::Address([10, 96, 0, 1].into(), Protocol::Tcp, 80);
        frontend_view(key, &store, &desired).expect("a frontend")
    }

    #[test]
    fn endpoints_of_a_pool_have_equal_probabilities() {
        let endpoints = vec![
            endpoint(1, true, "here"),
            endpoint(2, true, "there"),
            endpoint(3, false, "there"),
        ];
        let (views, finding) = view(TrafficPolicy::Cluster, endpoints);
        let seen: Vec<_> = views.iter().map(|it| (it.probability, it.why)).collect();
        assert_eq!(seen, [(0.5, None), (0.5, None), (0.0, Some(NotUsed::NotReady))]);
        assert!(views[2].probability.is_sign_positive());
        assert_eq!(&*views[0].zone_hints, ["zone-a".into()]);
        assert_eq!(finding, None);
    }

    #[test]
    fn frontend_without_usable_endpoint_has_a_finding() {
        let code = |policy, endpoints| view(policy, endpoints).1.map(|it| it.code);
        let there = || vec![endpoint(2, true, "there")];
        assert_eq!(code(TrafficPolicy::Local, there()), Some(Code::NoLocalEndpoints));
        assert_eq!(code(TrafficPolicy::Cluster, Vec::new()), Some(Code::NoEndpoints));
        let unready = vec![endpoint(2, false, "there")];
        assert_eq!(code(TrafficPolicy::Cluster, unready), Some(Code::EndpointsNotReady));
    }
}
