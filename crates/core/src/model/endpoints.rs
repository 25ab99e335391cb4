//! The selection of the endpoints that a service port may use.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Endpoint, EndpointSlice, Family, Protocol, ServicePort};

/// A destination for connections: an endpoint's address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// The IP address of the endpoint.
    pub address: IpAddr,
    /// The port of the endpoint.
    pub port: u16,
}

/// Returns the backends that are not in `others`. Both lists are sorted; each duplicate needs a
/// counterpart.
pub fn missing<'a>(
    backends: &'a [Backend],
    others: &'a [Backend],
) -> impl Iterator<Item = Backend> + use<'a> {
    let (backends, others) = without_common_ends(backends, others);
    let mut others = others.iter().peekable();
    backends.iter().copied().filter(move |backend| {
        while others.next_if(|other| *other < backend).is_some() {}
        others.next_if_eq(&backend).is_none()
    })
}

/// Removes the common prefix and suffix. With one change in thousands of backends, little remains.
fn without_common_ends<'a>(a: &'a [Backend], b: &'a [Backend]) -> (&'a [Backend], &'a [Backend]) {
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    (&a[..a.len() - end], &b[..b.len() - end])
}

/// The name and zone of the agent's node, for topology hints and policy Local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Locality<'a> {
    /// The name of the agent's node.
    pub node: &'a str,
    /// The zone of the agent's node.
    pub zone: Option<&'a str>,
}

/// The weights of backends. Others have the weight 1.
pub type Weights = BTreeMap<Backend, u16>;

/// The endpoints of one service port in one family, each list sorted and without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The backends for policy Cluster. Empty only if the service port has no endpoint at all.
    pub cluster: Arc<[Backend]>,
    /// The backends for policy Local.
    pub local: Arc<[Backend]>,
    /// The addresses of the ready endpoints on this node; with `publishNotReadyAddresses` also of
    /// terminating ones.
    pub local_ready: Vec<IpAddr>,
    /// The backends to which existing flows may stay: all ready or serving ones, regardless of
    /// policies and hints. For UDP all listed ones while none serves: a single replica with
    /// flapping readiness loses no session. Often the same list as `cluster`.
    pub serving: Arc<[Backend]>,
    /// The addresses of the local backends of `cluster` and `local`, which may reach themselves
    /// through the Service.
    pub local_addresses: Vec<IpAddr>,
    /// The weights; empty if no EndpointSlice has any.
    pub weights: Weights,
}

#[derive(Clone, Copy)]
struct Candidate<'a> {
    backend: Backend,
    local: bool,
    weight: Option<u16>,
    endpoint: &'a Endpoint,
}

impl Candidate<'_> {
    fn is_ready(&self) -> bool {
        self.endpoint.ready && !self.is_drained()
    }

    fn is_fallback(&self) -> bool {
        self.endpoint.serving && self.endpoint.terminating && !self.is_drained()
    }

    fn is_drained(&self) -> bool {
        self.weight == Some(0)
    }

    /// Returns the rank among copies of one backend: not terminating before terminating, ready before
    /// not ready, with a weight before without one.
    fn rank(&self) -> (Backend, bool, bool, bool) {
        (self.backend, self.endpoint.terminating, !self.endpoint.ready, self.weight.is_none())
    }
}

/// Selects the endpoints of a service port from the slices of its Service.
///
/// Returns ready endpoints that match the topology hints; without any, terminating endpoints that
/// still serve (KEP-1669). The fallback applies to each policy separately. The same address and
/// port in several slices is one endpoint; a copy that is not terminating wins. An endpoint with the
/// weight 0 is only in [`Selection::serving`].
#[must_use]
pub fn select<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: &ServicePort,
    family: Family,
    locality: Locality<'_>,
) -> Selection {
    let candidates = candidates(slices, port, family, locality.node);
    let ready = || candidates.iter().filter(|c| c.is_ready());
    let fallback = || candidates.iter().filter(|c| c.is_fallback());
    let backends = |list: &[&Candidate<'_>]| list.iter().map(|c| c.backend).collect();

    let mut cluster = Vec::with_capacity(candidates.len());
    cluster.extend(ready());
    keep_near(&mut cluster, locality);
    if cluster.is_empty() {
        cluster.extend(fallback());
    }
    let mut local: Vec<&Candidate<'_>> = ready().filter(|c| c.local).collect();
    let local_ready = local.iter().map(|c| c.backend.address).collect();
    if local.is_empty() {
        local = fallback().filter(|c| c.local).collect();
    }
    let mut local_addresses: Vec<IpAddr> =
        cluster.iter().chain(&local).filter(|c| c.local).map(|c| c.backend.address).collect();
    local_addresses.sort_unstable();
    local_addresses.dedup();
    let cluster_backends: Arc<[Backend]> = backends(&cluster);
    let serves = |c: &&Candidate<'_>| c.endpoint.serving || c.endpoint.ready;
    // Every endpoint of `cluster` is ready or serving.
    let serving = match candidates.iter().filter(serves).count() {
        0 if port.protocol == Protocol::Udp => candidates.iter().map(|c| c.backend).collect(),
        count if count == cluster.len() => cluster_backends.clone(),
        _ => candidates.iter().filter(serves).map(|c| c.backend).collect(),
    };
    Selection {
        weights: candidates.iter().filter_map(|c| Some((c.backend, c.weight?))).collect(),
        cluster: cluster_backends,
        local: backends(&local),
        local_ready,
        serving,
        local_addresses,
    }
}

/// Returns one candidate per backend, sorted by backend.
fn candidates<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: &ServicePort,
    family: Family,
    node: &str,
) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for slice in slices.filter(|s| s.family == family) {
        let matching =
            slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
        for slice_port in matching {
            candidates.extend(slice.endpoints.iter().map(|endpoint| Candidate {
                backend: Backend { address: endpoint.address, port: slice_port.port },
                local: endpoint.node.as_deref() == Some(node),
                weight: slice.weight,
                endpoint,
            }));
        }
    }
    // Of equal copies, the first slice's counts.
    candidates.sort_by_cached_key(Candidate::rank);
    candidates.dedup_by_key(|candidate| candidate.backend);
    candidates
}

/// Applies the topology hints, which are valid only if every ready endpoint has them (KEP-2433).
fn keep_near(ready: &mut Vec<&Candidate<'_>>, locality: Locality<'_>) {
    if !keep_hinted(ready, Endpoint::node_hints, Some(locality.node)) {
        keep_hinted(ready, Endpoint::zone_hints, locality.zone);
    }
}

/// Retains the candidates with a hint for this node or zone. Returns false, without a change, if
/// the hints are invalid or none matches.
fn keep_hinted(
    ready: &mut Vec<&Candidate<'_>>,
    hints: impl Fn(&Endpoint) -> &[Arc<str>],
    here: Option<&str>,
) -> bool {
    let Some(here) = here.filter(|h| !h.is_empty()) else { return false };
    let is_ours = |c: &Candidate<'_>| hints(c.endpoint).iter().any(|hint| &**hint == here);
    let counts = ready.iter().all(|c| !hints(c.endpoint).is_empty());
    if counts && ready.iter().any(|c| is_ours(c)) {
        ready.retain(|c| is_ours(c));
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EndpointPort, Hints, ObjectName};

    /// Parses an endpoint: its last octet, then flags (r ready, s serving, t terminating, l on the
    /// agent's node), then `@zone` or `#node` hints.
    fn endpoint(text: &str) -> Endpoint {
        let mut words = text.split(' ');
        let octet: u8 = words.next().and_then(|n| n.parse().ok()).expect("an octet");
        let flags = words.next().unwrap_or_default();
        let hints = |sign: char| -> Box<[Arc<str>]> {
            text.split(' ').filter_map(|w| w.strip_prefix(sign)).map(Arc::from).collect()
        };
        Endpoint {
            address: std::net::Ipv4Addr::new(10, 244, 0, octet).into(),
            ready: flags.contains('r'),
            serving: flags.contains('s'),
            terminating: flags.contains('t'),
            node: Some(if flags.contains('l') { "here" } else { "there" }.into()),
            hints: Hints::boxed(hints('@'), hints('#')),
        }
    }

    fn slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
        EndpointSlice {
            name: ObjectName::new("default", name),
            service: Some("web".into()),
            family: Family::V4,
            weight: None,
            ports: vec![
                EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 },
                EndpointPort { name: "http".into(), protocol: Protocol::Udp, port: 9090 },
            ],
            endpoints: endpoints.iter().map(|e| endpoint(e)).collect(),
        }
    }

    fn port() -> ServicePort {
        ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, node_port: None }
    }

    fn octets(backends: &[Backend]) -> Vec<u8> {
        backends
            .iter()
            .map(|backend| match backend.address {
                IpAddr::V4(v4) => v4.octets()[3],
                IpAddr::V6(_) => 0,
            })
            .collect()
    }

    /// Returns the last octets of the selection for policy Cluster, and of that for policy Local.
    fn selected(slices: &[EndpointSlice]) -> (Vec<u8>, Vec<u8>) {
        let locality = Locality { node: "here", zone: Some("a") };
        let selection = select(slices.iter(), &port(), Family::V4, locality);
        (octets(&selection.cluster), octets(&selection.local))
    }

    #[test]
    fn ready_endpoints_first_then_those_that_terminate_but_serve() {
        for (endpoints, cluster, local) in [
            (&["1 rs", "2 rsl"][..], &[1, 2][..], &[2][..]),
            (&["1 rs", "2 stl"], &[1], &[2]),
            (&["1 st", "2 stl"], &[1, 2], &[2]),
            (&["1 st", "2 t"], &[1], &[]),
            (&["1 s", "2"], &[], &[]),
            (&["1 rs", "2 sl"], &[1], &[]),
            (&[], &[], &[]),
        ] {
            assert_eq!(selected(&[slice("a", endpoints)]), (cluster.into(), local.into()));
        }
    }

    #[test]
    fn flows_stay_where_they_are_served() {
        for (endpoints, tcp, udp, is_cluster) in [
            (&["1 rs", "2 rs"][..], &[1, 2][..], &[1, 2][..], true),
            (&["1 rs", "2 st", "3 s"], &[1, 2, 3], &[1, 2, 3], false),
            (&["1 st", "2 st"], &[1, 2], &[1, 2], true),
            (&["1 st", "2 s"], &[1, 2], &[1, 2], false),
            (&["1 rs", "2", "3 t"], &[1], &[1], true),
            (&["1 r", "2"], &[1], &[1], true),
            (&["1", "2 t"], &[], &[1, 2], false),
            (&["1 rs @a", "2 rs @b"], &[1, 2], &[1, 2], false),
            (&[], &[], &[], true),
        ] {
            let slices = [slice("a", endpoints)];
            for (protocol, serving) in [(Protocol::Tcp, tcp), (Protocol::Udp, udp)] {
                let port = ServicePort { protocol, ..port() };
                let locality = Locality { node: "here", zone: Some("a") };
                let selection = select(slices.iter(), &port, Family::V4, locality);
                assert_eq!(octets(&selection.serving), serving, "{endpoints:?} {protocol}");
                let shared = Arc::ptr_eq(&selection.serving, &selection.cluster);
                assert!(shared || !is_cluster || serving.is_empty(), "{endpoints:?} {protocol}");
            }
        }
    }

    #[test]
    fn one_backend_in_several_slices_is_one_and_the_living_copy_wins() {
        let slices = [slice("a", &["1 st", "2 rs"]), slice("b", &["1 rs", "2 rs", "3 t"])];
        assert_eq!(selected(&slices).0, [1, 2]);
        let reversed = [slices[1].clone(), slices[0].clone()];
        assert_eq!(selected(&reversed).0, [1, 2]);
    }

    #[test]
    fn a_copy_with_a_weight_wins_and_drained_endpoints_keep_their_flows() {
        let weighted = |name: &str, weight, endpoints: &[&str]| EndpointSlice {
            weight,
            ..slice(name, endpoints)
        };
        let own = weighted("b", Some(0), &["1 rs"]);
        let slices = [weighted("a", None, &["1 rs", "2 rs"]), own.clone()];
        let selection = select(slices.iter(), &port(), Family::V4, Locality::default());
        assert_eq!(octets(&selection.cluster), [2]);
        assert_eq!(octets(&selection.serving), [1, 2]);
        // A living copy wins nevertheless.
        let slices = [own, weighted("c", Some(5), &["1 st"])];
        assert_eq!(selected(&slices).0, [0_u8; 0]);
    }

    #[test]
    fn hints_count_only_if_all_ready_endpoints_have_them_and_one_is_for_us() {
        for (endpoints, cluster) in [
            (&["1 rs @a", "2 rs @b"][..], &[1][..]),
            (&["1 rs @a", "2 rs"], &[1, 2]),
            (&["1 rs @b", "2 rs @c"], &[1, 2]),
            (&["1 rs @a", "2 rs @b", "3 st"], &[1]),
            (&["1 rs @a @b", "2 rs @b"], &[1]),
            (&["1 rs #here @b", "2 rs #there @a"], &[1]),
            (&["1 rs #here @b", "2 rs @a"], &[2]),
            (&["1 rs #there @b", "2 rs #there @a"], &[2]),
            (&["1 st @a", "2 st @b"], &[1, 2]),
        ] {
            assert_eq!(selected(&[slice("a", endpoints)]).0, cluster, "{endpoints:?}");
        }
    }

    #[test]
    fn missing_are_those_that_the_other_list_has_not() {
        for (backends, others, wanted) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], &[][..]),
            (&[1, 2, 3], &[0, 2, 4], &[1, 3]),
            (&[1, 1, 2], &[1, 2], &[1]),
            (&[5, 6], &[], &[5, 6]),
            (&[], &[1], &[]),
            (&[3], &[1, 2, 3], &[]),
        ] {
            let list = |octets: &[u8]| -> Vec<Backend> {
                let address = |n: &u8| std::net::Ipv4Addr::new(10, 244, 0, *n).into();
                octets.iter().map(|n| Backend { address: address(n), port: 80 }).collect()
            };
            let missing: Vec<Backend> = missing(&list(backends), &list(others)).collect();
            assert_eq!(octets(&missing), wanted, "{backends:?} {others:?}");
        }
    }

    #[test]
    fn name_protocol_and_family_must_match() {
        let select_for = |port: &ServicePort, family| {
            let slices = [slice("a", &["1 rs"])];
            select(slices.iter(), port, family, Locality::default()).cluster
        };
        assert_eq!(select_for(&port(), Family::V4).len(), 1);
        assert_eq!(select_for(&port(), Family::V6).len(), 0);
        let other = ServicePort { name: "https".into(), ..port() };
        assert_eq!(select_for(&other, Family::V4).len(), 0);
        let udp = ServicePort { protocol: Protocol::Udp, ..port() };
        assert_eq!(select_for(&udp, Family::V4)[0].port, 9090);
    }
}
