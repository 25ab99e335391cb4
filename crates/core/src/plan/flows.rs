//! The backends to which existing flows may stay.

use std::sync::Arc;

use super::{Desired, FrontendKey, ServicePlan};
use crate::model::{ArrivalMap, Backend, ObjectName, missing};

/// The changes of the backends for existing flows, by UDP frontend.
pub type Flows = ArrivalMap<FrontendKey, Flow>;

/// The backends to which the flows of a frontend may stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// The backends, sorted: see [`Selection::serving`](crate::model::Selection::serving). Empty if
    /// the frontend is gone or has no endpoint.
    pub serving: Arc<[Backend]>,
    /// True if flows to other backends may exist: the frontend is new, got its first backend, or
    /// lost one. After additions only, no search is necessary, but a running search needs the new
    /// list.
    pub search: bool,
}

impl Flow {
    /// Returns the change from the backends `before`, also sorted, to `serving`.
    pub(super) fn after(before: &[Backend], serving: &Arc<[Backend]>) -> Flow {
        let lost = missing(before, serving).next().is_some();
        Flow { serving: serving.clone(), search: before.is_empty() || lost }
    }

    /// Merges a later change of the same frontend; a due search stays due.
    pub fn replace(&mut self, later: Flow) {
        *self = Flow { search: self.search || later.search, ..later };
    }
}

/// Adds later changes.
pub fn merge_flows(flows: &mut Flows, later: Flows) {
    for (key, flow) in later {
        flows.entry(key).or_default().replace(flow);
    }
}

/// Adds a removed frontend: no flow may stay there.
pub fn end_flow(flows: &mut Flows, key: FrontendKey) {
    if key.is_swept() {
        flows.entry(key).or_default().replace(Flow { search: true, ..Flow::default() });
    }
}

impl Desired {
    /// Returns the backends to which existing flows may stay, for all frontends, to be searched. For
    /// rules that were missing for a moment: packets may have made entries without them.
    #[must_use]
    pub fn all_flows(&self) -> Flows {
        let frontends = self
            .plans
            .iter()
            .flat_map(|(name, plan)| plan.frontends.iter().map(move |(key, _)| (name, plan, *key)));
        let owned = frontends.filter(|(name, _, key)| self.claims.winner(*key) == Some(name));
        owned
            .filter_map(|(_, plan, key)| {
                plan.serving(key).map(|serving| (key, Flow { serving, search: true }))
            })
            .collect()
    }

    /// Records all node ports to be searched, after an address got them: packets may have come before.
    /// Records the other frontends too, because an ExternalIP may hide a node port on that address.
    pub(super) fn note_node_ports(&mut self) {
        let mut all = self.all_flows();
        for (key, flow) in &mut all {
            flow.search = matches!(key, FrontendKey::NodePort(..));
        }
        merge_flows(&mut self.flows, all);
    }

    /// Takes the changes of the backends for existing flows since the last call.
    pub fn take_flows(&mut self) -> Flows {
        std::mem::take(&mut self.flows)
    }

    /// Records the backends to which existing flows may stay, for a frontend that the same Service
    /// claims before and after.
    pub(super) fn note_served(
        &mut self,
        name: &ObjectName,
        key: FrontendKey,
        old: &ServicePlan,
        new: &ServicePlan,
    ) {
        // With several claims, the owner decides.
        if self.claims.winner(key) != Some(name) {
            return;
        }
        let (Some(before), Some(serving)) = (old.serving(key), new.serving(key)) else { return };
        if before != serving {
            self.note(key, Flow::after(&before, &serving));
        }
    }

    /// Records the backends to which existing flows may stay, for a frontend that may have a new
    /// owner or none. `plan` is the plan of the Service of this name.
    pub(super) fn note_owned(
        &mut self,
        name: &ObjectName,
        plan: Option<&ServicePlan>,
        key: FrontendKey,
    ) {
        let owner = match self.claims.winner(key) {
            Some(owner) if owner == name => plan,
            Some(owner) => self.plans.get(owner),
            None => None,
        };
        match owner.and_then(|owner| owner.serving(key)) {
            Some(serving) => self.note(key, Flow { serving, search: true }),
            None => end_flow(&mut self.flows, key),
        }
    }

    fn note(&mut self, key: FrontendKey, flow: Flow) {
        self.flows.entry(key).or_default().replace(flow);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::model::{
        Change, Dirty, Family, Protocol, Service, ServicePort, Store, TrafficPolicy,
    };
    use crate::plan::{NodePortAddresses, Options};

    fn backends(ports: &[u16]) -> Arc<[Backend]> {
        let address = std::net::Ipv4Addr::new(10, 244, 0, 1).into();
        ports.iter().map(|port| Backend { address, port: *port }).collect()
    }

    const KEY: FrontendKey = FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_080);

    #[test]
    fn a_search_follows_a_first_or_a_lost_backend() {
        for (before, now, search) in [
            (&[][..], &[1][..], true),
            (&[1, 3], &[1, 2, 3, 4], false),
            (&[1, 3], &[0, 1, 3], false),
            (&[1], &[], true),
            (&[1, 3], &[1], true),
            (&[1, 3], &[3], true),
            (&[1, 3], &[0, 2, 4], true),
            (&[5], &[1, 2, 3], true),
        ] {
            let flow = Flow::after(&backends(before), &backends(now));
            assert_eq!(flow, Flow { serving: backends(now), search }, "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_search_that_is_due_is_not_forgotten() {
        let other = FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_079);
        let flow = |ports: &[u16], search| Flow { serving: backends(ports), search };
        let mut flows = Flows::from_iter([(KEY, flow(&[1], true))]);
        let later = [(KEY, flow(&[1, 2], false)), (other, flow(&[1], false))];
        merge_flows(&mut flows, Flows::from_iter(later));
        let merged: Vec<_> = flows.into_iter().collect();
        assert_eq!(merged, [(KEY, flow(&[1, 2], true)), (other, flow(&[1], false))]);
    }

    #[test]
    fn only_flows_of_udp_are_looked_for() {
        let mut flows = Flows::default();
        end_flow(&mut flows, FrontendKey::NodePort(Family::V4, Protocol::Sctp, 30_080));
        end_flow(&mut flows, FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_080));
        assert!(flows.is_empty());
    }

    #[test]
    fn new_address_of_the_node_searches_node_ports_and_names_what_hides_them() {
        let prefix: ipnet::IpNet = "192.0.2.0/24".parse().expect("a prefix");
        let cidrs = NodePortAddresses { primary: false, nets: vec![prefix] };
        let options = Options { node_port_addresses: cidrs, ..Options::default() };
        let (mut store, mut desired) = (Store::new(), Desired::new(options, "node-1"));
        let service = Service {
            name: ObjectName::new("default", "web"),
            created: None,
            cluster_ips: vec![Ipv4Addr::new(10, 96, 0, 1).into()],
            external_ips: vec![Ipv4Addr::new(192, 0, 2, 11).into()],
            load_balancer_ips: Vec::new(),
            proxied_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![ServicePort {
                name: "".into(),
                protocol: Protocol::Udp,
                port: 30_080,
                node_port: Some(30_080),
            }],
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            balancing: None,
            health_check_node_port: None,
        };
        let mut flows_after = |change: Change| {
            let mut dirty = Dirty::default();
            store.apply(change, &mut dirty);
            desired.update(&store, &dirty);
            desired.take_flows().into_iter().collect::<BTreeMap<_, _>>()
        };
        let addresses = |last: &[u8]| {
            let all = last.iter().map(|octet| IpAddr::from(Ipv4Addr::new(192, 0, 2, *octet)));
            Change::InterfaceAddresses(all.collect())
        };
        flows_after(addresses(&[10]));
        let all = flows_after(Change::service(service));
        let after_new = flows_after(addresses(&[10, 11]));
        assert!(after_new.keys().eq(all.keys()), "{after_new:?}");
        for (key, flow) in &after_new {
            assert_eq!(flow.search, matches!(key, FrontendKey::NodePort(..)), "{key:?}");
        }
        assert!(flows_after(addresses(&[10])).is_empty());
    }
}
