//! The plans of all Services together: the desired state of the kernel, and its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::conflicts::{Claims, Precedence};
use super::{
    Conflict, Flows, Frontend, FrontendKey, FrontendKind, HealthCheck, NodeContext, Options,
    PlanDelta, ServicePlan, Set, SetMember, Unserved, base_chains, plan_service,
};
use crate::model::{ArrivalMap, Dirty, Family, ObjectName, Store};

/// The desired state of the kernel.
#[derive(Debug, Default)]
pub struct Desired {
    pub(super) options: Options,
    node_name: String,
    node_context: Option<Arc<NodeContext>>,
    pub(super) plans: ArrivalMap<ObjectName, ServicePlan>,
    pub(super) claims: Claims,
    /// Members of plain sets with the number of Services (or node_context) that want them.
    members: ArrivalMap<SetMember, usize>,
    health_checks: Arc<BTreeSet<HealthCheck>>,
    /// The Services whose hash tables or weights would need too many elements.
    oversized: BTreeSet<ObjectName>,
    /// The sum of all plans.
    unserved: Unserved,
    /// The changes of the plan.
    touched: PlanDelta,
    pub(super) flows: Flows,
    /// The ports of the proxy on loopback addresses that may have changed.
    pub(super) loopback: BTreeSet<(Family, u16)>,
}

impl Desired {
    /// Makes an empty plan for the node of that name.
    #[must_use]
    pub fn new(options: Options, node_name: &str) -> Desired {
        Desired { options, node_name: node_name.to_owned(), ..Desired::default() }
    }

    /// Changes the options or the name of the node. They take effect at the next update whose node
    /// context is dirty.
    pub fn configure(&mut self, options: Options, node_name: &str) {
        // What the kernel lacks stays known.
        self.options = Options {
            ipv4_only: self.options.ipv4_only,
            tcp_timeouts: options.tcp_timeouts.filter(|_| self.options.tcp_timeouts.is_some()),
            ..options
        };
        node_name.clone_into(&mut self.node_name);
    }

    /// Leaves IPv6 out of the plan from the next update on whose node context is dirty. Returns false if
    /// it is out already.
    pub fn set_ipv4_only(&mut self) -> bool {
        !std::mem::replace(&mut self.options.ipv4_only, true)
    }

    /// Leaves the timeouts of TCP connections out of the plan, likewise. Returns false if it had none.
    pub fn set_without_timeouts(&mut self) -> bool {
        self.options.tcp_timeouts.take().is_some()
    }

    /// Plans the dirty Services again; all known Services if another node context changes their
    /// plans.
    pub fn update(&mut self, store: &Store, dirty: &Dirty) {
        if dirty.node_context || self.node_context.is_none() {
            let new = NodeContext::of(store, &self.options, &self.node_name);
            let same = self.node_context.as_ref().is_none_or(|old| old.plans_services_as(&new));
            if self.node_context.is_none() {
                let services = store.service_count();
                self.plans.reserve_exact(services);
                self.claims.reserve(services);
            }
            self.set_node_context(new);
            if !same {
                let gone = self.plans.keys().filter(|name| store.service(name).is_none());
                let gone: Vec<ObjectName> = gone.cloned().collect();
                let known = store.services().map(|service| &service.name);
                return self.plan_services(store, known.chain(&gone));
            }
        }
        self.plan_services(store, dirty.services.iter());
    }

    fn set_node_context(&mut self, new: NodeContext) {
        let members = |s: &NodeContext| -> BTreeSet<IpAddr> {
            let families = Family::ALL.into_iter().filter(|family| s.options.has(*family));
            families.filter_map(|f| s.node_port_addresses(f)).flatten().collect()
        };
        let old = self.node_context.as_deref().map(members).unwrap_or_default();
        if !members(&new).is_subset(&old) {
            self.note_node_ports();
        }
        for address in members(&new) {
            self.add_member(SetMember { set: Set::NodeportIps, address });
        }
        for address in old {
            self.remove_member(SetMember { set: Set::NodeportIps, address });
        }
        self.note_loopback_options(&new);
        let chains = |s: &NodeContext| Family::ALL.map(|family| base_chains(s, family));
        self.touched.chains |=
            self.node_context.as_ref().is_none_or(|old| chains(old) != chains(&new));
        self.node_context = Some(Arc::new(new));
    }

    fn plan_services<'a>(&mut self, store: &Store, names: impl Iterator<Item = &'a ObjectName>) {
        // Planning borrows the node context while other fields of self change.
        let Some(node_context) = self.node_context.take() else {
            return;
        };
        for name in names {
            let service = store.service(name);
            let new =
                service.map(|service| plan_service(service, store.slices(name), &node_context));
            self.replace_plan(name, new);
        }
        self.node_context = Some(node_context);
    }

    fn replace_plan(&mut self, name: &ObjectName, new: Option<ServicePlan>) {
        let old = self.plans.swap_remove(name);
        if old == new {
            self.plans.extend(new.map(|new| (name.clone(), new)));
            return;
        }
        let mut keys: Vec<FrontendKey> = Vec::new();
        // Frontends whose owner may have changed.
        let mut contested: Vec<FrontendKey> = Vec::new();
        if let Some(plan) = &new {
            self.unserved.add(&plan.unserved);
            for (key, frontend) in &plan.frontends {
                let same = old.as_ref().filter(|old| plan.claims_alike(old, *key));
                match same.and_then(|old| Some((old, old.frontend(*key)?))) {
                    Some((old, before)) => {
                        if before != frontend {
                            keys.push(*key);
                        }
                        self.note_served(name, *key, old, plan);
                    }
                    None => {
                        self.claims.add(*key, plan.claim(name, *key));
                        keys.push(*key);
                        contested.push(*key);
                    }
                }
            }
            for member in plan.members() {
                self.add_member(member);
            }
        }
        if let Some(plan) = &old {
            self.unserved.subtract(&plan.unserved);
            for (key, _) in &plan.frontends {
                let kept = new.as_ref().is_some_and(|new| {
                    new.frontend(*key).is_some() && new.claims_alike(plan, *key)
                });
                if !kept {
                    self.claims.remove(*key, &plan.claim(name, *key));
                    keys.push(*key);
                    contested.push(*key);
                }
            }
            for member in plan.members() {
                self.remove_member(member);
            }
        }
        match new.as_ref().is_some_and(|new| new.is_oversized) {
            true => self.oversized.insert(name.clone()),
            false => self.oversized.remove(name),
        };
        let before = old.iter().flat_map(|plan| &plan.health_checks);
        let after = new.iter().flat_map(|plan| &plan.health_checks);
        if !before.clone().eq(after.clone()) {
            let checks = Arc::make_mut(&mut self.health_checks);
            before.for_each(|check| _ = checks.remove(check));
            checks.extend(after.cloned());
        }
        for key in contested {
            self.note_owned(name, new.as_ref(), key);
        }
        self.plans.extend(new.map(|new| (name.clone(), new)));
        self.note_loopback(&keys);
        self.touched.frontends.extend(keys);
    }

    fn add_member(&mut self, member: SetMember) {
        let count = self.members.entry(member).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.touched.members.insert(member);
        }
    }

    fn remove_member(&mut self, member: SetMember) {
        if let Some(count) = self.members.get_mut(&member) {
            *count -= 1;
            if *count == 0 {
                self.members.swap_remove(&member);
                self.touched.members.insert(member);
            }
        }
    }

    /// Returns the node context; `None` before the first update.
    #[must_use]
    pub fn node_context(&self) -> Option<&Arc<NodeContext>> {
        self.node_context.as_ref()
    }

    /// Returns the desired frontend with that key.
    #[must_use]
    pub fn frontend(&self, key: FrontendKey) -> Option<&Frontend> {
        self.plans.get(self.claims.winner(key)?)?.frontend(key)
    }

    /// Returns the Service that owns a frontend, after conflict resolution.
    #[must_use]
    pub fn service_of(&self, key: FrontendKey) -> Option<&ObjectName> {
        self.claims.winner(key)
    }

    /// Returns the kind of a frontend for a Service that claims it.
    #[must_use]
    pub fn kind_of(&self, service: &ObjectName, key: FrontendKey) -> Option<FrontendKind> {
        Some(self.plans.get(service)?.kind(key))
    }

    /// Returns the keys of the frontends that a Service claims, in order. Another Service may own
    /// them.
    pub fn claimed_by(&self, service: &ObjectName) -> impl Iterator<Item = FrontendKey> {
        let plan = self.plans.get(service).into_iter();
        plan.flat_map(|plan| &plan.frontends).map(|(key, _)| *key)
    }

    /// Returns all desired frontends, in the order of their keys.
    #[must_use]
    pub fn frontends(&self) -> BTreeMap<FrontendKey, &Frontend> {
        let keys = self.plans.values().flat_map(|plan| &plan.frontends).map(|(key, _)| *key);
        keys.filter_map(|key| Some((key, self.frontend(key)?))).collect()
    }

    /// Returns true if the plan has that member.
    #[must_use]
    pub fn has_member(&self, member: SetMember) -> bool {
        self.members.contains_key(&member)
    }

    /// Returns all desired members of plain sets, in order.
    #[must_use]
    pub fn members(&self) -> BTreeSet<SetMember> {
        self.members.keys().copied().collect()
    }

    /// Returns the frontends that several Services claim.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.claims.conflicts()
    }

    /// Returns the health checks of load balancers for Services: the same value until one changes.
    #[must_use]
    pub fn health_checks(&self) -> &Arc<BTreeSet<HealthCheck>> {
        &self.health_checks
    }

    /// Returns the Services whose hash tables or weights would need too many elements
    /// ([`ServicePlan::is_oversized`]).
    #[must_use]
    pub fn oversized(&self) -> &BTreeSet<ObjectName> {
        &self.oversized
    }

    /// Returns the numbers of service ports without an endpoint for some traffic.
    #[must_use]
    pub fn unserved(&self) -> Unserved {
        self.unserved
    }

    /// Takes the changes of the plan since the last call.
    pub fn take_delta(&mut self) -> PlanDelta {
        std::mem::take(&mut self.touched)
    }

    /// Returns a delta with the whole plan, for a comparison with a kernel in unknown state.
    #[must_use]
    pub fn everything(&self) -> PlanDelta {
        let plans = self.plans.values();
        let frontends = plans.flat_map(|plan| &plan.frontends).map(|(key, _)| *key);
        let members = self.members.keys().copied();
        PlanDelta { frontends: frontends.collect(), members: members.collect(), chains: true }
    }
}

impl ServicePlan {
    /// Returns the claim to a frontend of the Service with this name and plan.
    fn claim(&self, name: &ObjectName, key: FrontendKey) -> Precedence {
        Precedence { kind: self.kind(key), created: self.created, service: name.clone() }
    }

    /// Returns true if another plan of the same Service would claim a frontend with the same
    /// precedence.
    fn claims_alike(&self, other: &ServicePlan, key: FrontendKey) -> bool {
        self.created == other.created && self.kind(key) == other.kind(key)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = SetMember> {
        let of = |set| move |address: &IpAddr| SetMember { set, address: *address };
        let cluster_ips = self.cluster_ips.iter().map(of(Set::ClusterIps));
        let external = self.external_addresses.iter().map(of(Set::ExternalIps));
        cluster_ips.chain(external).chain(self.hairpins.iter().map(of(Set::Hairpin)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{
        Change, Endpoint, EndpointPort, EndpointSlice, Protocol, Service, ServicePort,
        TrafficPolicy,
    };
    use crate::plan::{Flow, NodePortAddresses, merge_flows};

    /// Generates Services with few names and addresses, so that they conflict. An address can be
    /// one Service's ClusterIP and another's VIP or ExternalIP, or both of one Service.
    fn service() -> impl Strategy<Value = Change> {
        let addresses = || proptest::collection::vec(0_u8..4, 0..3);
        let ip = |n: u8| IpAddr::from(Ipv4Addr::new(10, 96, 0, n));
        let names = (0_u8..5, 0_u8..3, 0_u8..3, any::<[bool; 4]>());
        (names, addresses(), addresses()).prop_map(move |(names, external, vips)| {
            let (n, cluster_ip, age, [local, node_port, udp, sticky]) = names;
            Change::service(Service {
                name: ObjectName::new("default", format!("service-{n}")),
                created: (age > 0).then_some(i64::from(age)),
                cluster_ips: vec![ip(cluster_ip)],
                external_ips: external.into_iter().map(ip).collect(),
                load_balancer_ips: vips.into_iter().map(ip).collect(),
                proxied_ips: Vec::new(),
                source_ranges: Vec::new(),
                ports: vec![ServicePort {
                    name: "".into(),
                    protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
                    port: 80,
                    node_port: node_port.then_some(30_080),
                }],
                internal_policy: TrafficPolicy::Cluster,
                external_policy: if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster },
                affinity_seconds: sticky.then_some(60),
                balancing: None,
                health_check_node_port: local.then_some(31_000),
            })
        })
    }

    fn slice() -> impl Strategy<Value = Change> {
        let endpoints = proptest::collection::vec((0_u8..6, any::<[bool; 4]>()), 0..5);
        (0_u8..5, 0_u8..4, endpoints).prop_map(|(n, of, endpoints)| {
            Change::slice(EndpointSlice {
                name: ObjectName::new("default", format!("slice-{n}")),
                service: Some(format!("service-{of}").into()),
                family: Family::V4,
                weight: None,
                ports: [Protocol::Tcp, Protocol::Udp]
                    .map(|protocol| EndpointPort { name: "".into(), protocol, port: 8080 })
                    .into(),
                endpoints: endpoints
                    .into_iter()
                    .map(|(octet, [ready, serving, terminating, here])| Endpoint {
                        address: Ipv4Addr::new(10, 244, 0, octet).into(),
                        ready,
                        serving,
                        terminating,
                        node: Some(if here { "node-1" } else { "node-2" }.into()),
                        hints: None,
                    })
                    .collect(),
            })
        })
    }

    type State = (
        Vec<(FrontendKey, Frontend)>,
        BTreeSet<SetMember>,
        BTreeSet<Conflict>,
        Vec<HealthCheck>,
        Unserved,
        BTreeMap<FrontendKey, Flow>,
    );

    /// Applies the changes, with a plan after every `every` changes.
    fn planned(changes: &[Change], every: usize) -> (Desired, Flows) {
        let mut store = Store::new();
        let mut desired = Desired::new(Options::default(), "node-1");
        let mut flows = Flows::default();
        for round in changes.chunks(every) {
            let mut dirty = Dirty::default();
            for change in round.iter().cloned() {
                store.apply(change, &mut dirty);
            }
            desired.update(&store, &dirty);
            merge_flows(&mut flows, desired.take_flows());
        }
        (desired, flows)
    }

    fn by_frontend(flows: &Flows) -> BTreeMap<FrontendKey, Flow> {
        flows.clone().into_iter().collect()
    }

    /// Returns the plan, and the backends to which existing flows may stay.
    fn state((desired, flows): &(Desired, Flows)) -> State {
        let mut flows = by_frontend(flows);
        flows.retain(|key, _| desired.frontend(*key).is_some());
        let frontends = desired.frontends().into_iter().map(|(k, f)| (k, f.clone())).collect();
        let conflicts = desired.conflicts().collect();
        let checks = desired.health_checks().iter().cloned().collect();
        (frontends, desired.members(), conflicts, checks, desired.unserved(), flows)
    }

    /// Returns the expected owner of each frontend: the first of its claims by kind, age and name.
    fn owners(changes: &[Change]) -> BTreeMap<FrontendKey, ObjectName> {
        let mut owners: BTreeMap<FrontendKey, (u8, i64, ObjectName)> = BTreeMap::new();
        let mut claim = |key, kind, service: &Service| {
            let claim = (kind, service.created.unwrap_or(i64::MAX), service.name.clone());
            let first = owners.entry(key).or_insert_with(|| claim.clone());
            *first = claim.min(first.clone());
        };
        for change in changes {
            let Change::Service(service) = change else { continue };
            let port = &service.ports[0];
            let addresses =
                [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips];
            for (kind, addresses) in (0_u8..).zip(addresses) {
                for address in addresses {
                    let key = FrontendKey::Address(*address, port.protocol, port.port);
                    claim(key, kind, service);
                }
            }
            if let Some(node_port) = port.node_port {
                claim(FrontendKey::NodePort(Family::V4, port.protocol, node_port), 3, service);
            }
        }
        owners.into_iter().map(|(key, (.., name))| (key, name)).collect()
    }

    proptest! {
        #[test]
        fn the_plan_depends_on_what_is_there_and_not_on_how_it_came(
            (changes, shuffled) in proptest::collection::vec(prop_oneof![service(), slice()], 1..20)
                .prop_map(|changes| {
                    // The last change of each object counts.
                    let name = |change: &Change| match change {
                        Change::Service(service) => service.name.clone(),
                        Change::Slice(slice) => slice.name.clone(),
                        _ => ObjectName::new("", ""),
                    };
                    let last: BTreeMap<ObjectName, Change> =
                        changes.iter().map(|change| (name(change), change.clone())).collect();
                    (changes, last.into_values().collect::<Vec<_>>())
                })
                .prop_flat_map(|(changes, last)| (Just(changes), Just(last).prop_shuffle())),
            every in 1_usize..5,
        ) {
            let planned = [planned(&changes, every), planned(&shuffled, shuffled.len())];
            let owners = owners(&shuffled);
            for (desired, flows) in &planned {
                let planned = desired.frontends().into_keys();
                let owned = planned.filter_map(|key| Some((key, desired.service_of(key)?.clone())));
                prop_assert_eq!(&owned.collect::<BTreeMap<_, _>>(), &owners);
                // Where flows may stay follows from the owner's endpoints alone.
                let flows = by_frontend(flows);
                let mut all = by_frontend(&desired.all_flows());
                for (key, owner) in &owners {
                    let serving = flows.get(key).map(|flow| flow.serving.clone());
                    prop_assert_eq!(&serving, &desired.plans[owner].serving(*key));
                    prop_assert_eq!(serving, all.remove(key).map(|flow| flow.serving));
                }
                prop_assert!(all.is_empty());
            }
            prop_assert_eq!(state(&planned[0]), state(&planned[1]));
        }
    }

    /// The veth of a new pod adds such an address. Covers `primary`, and prefixes that exclude it.
    #[test]
    fn address_that_no_node_port_uses_changes_nothing() {
        let prefix: ipnet::IpNet = "192.0.2.0/24".parse().expect("a prefix");
        let cidrs = NodePortAddresses { primary: false, nets: vec![prefix] };
        for addresses in [NodePortAddresses::default(), cidrs] {
            let options = Options { node_port_addresses: addresses, ..Options::default() };
            let (mut store, mut desired) = (Store::new(), Desired::new(options, "node-1"));
            let mut change = |addresses: &[&str]| {
                let addresses = addresses.iter().map(|ip| ip.parse().expect("an address"));
                let mut dirty = Dirty::default();
                store.apply(Change::InterfaceAddresses(addresses.collect()), &mut dirty);
                desired.update(&store, &dirty);
                desired.take_delta()
            };
            assert!(!change(&["192.0.2.10"]).is_empty());
            assert!(change(&["192.0.2.10", "fe80::1"]).is_empty());
        }
    }
}
