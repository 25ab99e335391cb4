//! The store of known objects, and the Services to plan again after a change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{ArrivalMap, ArrivalSet, EndpointSlice, Node, ObjectName, Service};

/// A change from a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A Service is new or has changed.
    Service(Service),
    /// A Service is deleted, or shunt no longer implements it.
    ServiceGone(ObjectName),
    /// An EndpointSlice is new or has changed.
    Slice(EndpointSlice),
    /// An EndpointSlice is deleted, or shunt no longer uses it.
    SliceGone(ObjectName),
    /// The current state of the agent's Node.
    Node(Node),
    /// The agent's Node is deleted. Its last state stays in effect.
    NodeGone,
    /// A ServiceCIDR is new or has changed: its name and prefixes.
    ServiceCidr(Arc<str>, Vec<IpNet>),
    /// A ServiceCIDR is deleted.
    ServiceCidrGone(Arc<str>),
    /// The source has listed all objects of a kind: all others are deleted.
    Listed(Listed),
    /// All current addresses of the node's interfaces, including loopback.
    InterfaceAddresses(BTreeSet<IpAddr>),
    /// The source has listed all kinds once: programming may begin.
    Synced,
}

/// The names of all objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// The names of all Services.
    Services(HashSet<ObjectName>),
    /// The names of all EndpointSlices.
    Slices(HashSet<ObjectName>),
    /// The names of all ServiceCIDRs.
    ServiceCidrs(HashSet<Arc<str>>),
}

/// The Services to plan again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dirty {
    /// The Services whose service ports may have changed.
    pub services: ArrivalSet<ObjectName>,
    /// True if a common input of all Services has changed: the Node, the ServiceCIDRs, the
    /// interface addresses.
    pub node_context: bool,
}

impl Dirty {
    /// Returns true if there is nothing to plan again.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node_context
    }
}

/// A store of all currently known objects.
#[derive(Debug, Default)]
pub struct Store {
    services: ArrivalMap<ObjectName, Service>,
    slices: ArrivalMap<ObjectName, EndpointSlice>,
    /// The slices of each Service, sorted by name.
    slices_of: ArrivalMap<ObjectName, Vec<ObjectName>>,
    /// The last known state of the agent's Node, even if it no longer exists.
    node: Option<Node>,
    node_exists: bool,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    interface_addresses: BTreeSet<IpAddr>,
    synced: bool,
    service_ports: usize,
    endpoints: usize,
}

impl Store {
    /// Makes an empty store.
    #[must_use]
    pub fn new() -> Store {
        Store::default()
    }

    /// Applies one change and adds the Services to plan again to `dirty`. Returns false, without a
    /// change of `dirty`, if the store has this state already.
    pub fn apply(&mut self, change: Change, dirty: &mut Dirty) -> bool {
        let changed = match change {
            Change::Service(service) => return self.apply_service(service, dirty),
            Change::ServiceGone(name) => return self.drop_service(name, dirty),
            Change::Slice(slice) => return self.apply_slice(slice, dirty),
            Change::SliceGone(name) => return self.drop_slice(&name, dirty),
            Change::Listed(listed) => return self.drop_others(&listed, dirty),
            Change::Node(node) => self.set_node(node),
            Change::NodeGone => std::mem::take(&mut self.node_exists),
            Change::ServiceCidr(name, nets) => {
                let changed = self.service_cidrs.get(&name) != Some(&nets);
                self.service_cidrs.insert(name, nets);
                changed
            }
            Change::ServiceCidrGone(name) => self.service_cidrs.remove(&name).is_some(),
            Change::InterfaceAddresses(addresses) => {
                let changed = self.interface_addresses != addresses;
                self.interface_addresses = addresses;
                changed
            }
            Change::Synced => !std::mem::replace(&mut self.synced, true),
        };
        dirty.node_context |= changed;
        changed
    }

    fn apply_service(&mut self, service: Service, dirty: &mut Dirty) -> bool {
        if self.services.get(&service.name) == Some(&service) {
            return false;
        }
        dirty.services.insert(service.name.clone());
        self.service_ports += service.ports.len();
        let old = self.services.insert(service.name.clone(), service);
        self.service_ports -= old.map_or(0, |old| old.ports.len());
        true
    }

    fn drop_service(&mut self, name: ObjectName, dirty: &mut Dirty) -> bool {
        let Some(old) = self.services.swap_remove(&name) else { return false };
        self.service_ports -= old.ports.len();
        dirty.services.insert(name);
        true
    }

    fn drop_slice(&mut self, name: &ObjectName, dirty: &mut Dirty) -> bool {
        let Some(old) = self.slices.swap_remove(name) else { return false };
        self.endpoints -= old.endpoints.len();
        self.unlink(&old, dirty);
        true
    }

    fn drop_others(&mut self, listed: &Listed, dirty: &mut Dirty) -> bool {
        let gone: Vec<Change> = match listed {
            Listed::Services(names) => {
                let gone = self.services.keys().filter(|name| !names.contains(*name));
                gone.cloned().map(Change::ServiceGone).collect()
            }
            Listed::Slices(names) => {
                let gone = self.slices.keys().filter(|name| !names.contains(*name));
                gone.cloned().map(Change::SliceGone).collect()
            }
            Listed::ServiceCidrs(names) => {
                let gone = self.service_cidrs.keys().filter(|name| !names.contains(*name));
                gone.cloned().map(Change::ServiceCidrGone).collect()
            }
        };
        let changed = !gone.is_empty();
        for change in gone {
            self.apply(change, dirty);
        }
        changed
    }

    fn apply_slice(&mut self, slice: EndpointSlice, dirty: &mut Dirty) -> bool {
        match self.slices.get(&slice.name) {
            Some(old) if *old == slice => return false,
            Some(old) if old.service == slice.service => {
                dirty.services.extend(slice.service_name());
            }
            _ => {
                // A slice that changes its Service leaves the old one at once.
                if let Some(old) = self.slices.swap_remove(&slice.name) {
                    self.endpoints -= old.endpoints.len();
                    self.unlink(&old, dirty);
                }
                if let Some(service) = slice.service_name() {
                    let names = self.slices_of.entry(service.clone()).or_default();
                    if let Err(place) = names.binary_search(&slice.name) {
                        names.insert(place, slice.name.clone());
                    }
                    dirty.services.insert(service);
                }
            }
        }
        self.endpoints += slice.endpoints.len();
        let old = self.slices.insert(slice.name.clone(), slice);
        self.endpoints -= old.map_or(0, |old| old.endpoints.len());
        true
    }

    fn unlink(&mut self, slice: &EndpointSlice, dirty: &mut Dirty) {
        let Some(service) = slice.service_name() else {
            return;
        };
        if let Some(names) = self.slices_of.get_mut(&service) {
            names.retain(|name| *name != slice.name);
            if names.is_empty() {
                self.slices_of.swap_remove(&service);
            }
        }
        dirty.services.insert(service);
    }

    fn set_node(&mut self, mut node: Node) -> bool {
        if let Some(known) = &self.node {
            node.keep_missing(known);
        }
        let node = Some(node);
        let changed = self.node != node || !self.node_exists;
        self.node = node;
        self.node_exists = true;
        changed
    }

    /// Returns true once the source has listed all kinds: an earlier plan would be incomplete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns all Services, in the order of insertion.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// Returns the number of Services.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Returns the sum of the port counts of all Services.
    #[must_use]
    pub fn service_port_count(&self) -> usize {
        self.service_ports
    }

    /// Returns the number of endpoints in all EndpointSlices.
    #[must_use]
    pub fn endpoint_count(&self) -> usize {
        self.endpoints
    }

    /// Returns the number of EndpointSlices.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// Returns the Service of that name.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// Returns the EndpointSlices of a Service, sorted by name.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> + Clone {
        self.slices_of.get(service).into_iter().flatten().filter_map(|name| self.slices.get(name))
    }

    /// Returns the EndpointSlice of that name.
    #[must_use]
    pub fn slice(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        self.slices.get(name)
    }

    /// Returns the last known state of the agent's Node, even after its deletion.
    #[must_use]
    pub fn last_known_node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns the agent's Node; `None` after its deletion.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref().filter(|_| self.node_exists)
    }

    /// Returns the prefixes of all ServiceCIDRs.
    pub fn service_cidrs(&self) -> impl Iterator<Item = &IpNet> {
        self.service_cidrs.values().flatten()
    }

    /// Returns the addresses of the node's interfaces, including loopback.
    #[must_use]
    pub fn interface_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.interface_addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, ObjectName};

    fn slice(name: &str, service: Option<&str>) -> EndpointSlice {
        EndpointSlice {
            name: ObjectName::new("default", name),
            service: service.map(Arc::from),
            family: Family::V4,
            ports: Vec::new(),
            endpoints: Vec::new(),
        }
    }

    fn node(addresses: &[&str], pod_cidrs: &[&str], zone: Option<&str>) -> Node {
        Node {
            name: "node-1".into(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            pod_cidrs: pod_cidrs.iter().map(|net| net.parse().unwrap()).collect(),
            zone: zone.map(Arc::from),
            eligible: true,
        }
    }

    fn dirtied(store: &mut Store, change: Change) -> Vec<String> {
        let mut dirty = Dirty::default();
        store.apply(change, &mut dirty);
        let mut names: Vec<String> = dirty.services.iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn a_slice_that_changes_its_service_leaves_the_old_one_at_once() {
        let mut store = Store::new();
        assert_eq!(dirtied(&mut store, Change::Slice(slice("s", Some("a")))), ["default/a"]);
        assert!(dirtied(&mut store, Change::Slice(slice("s", Some("a")))).is_empty());
        let both = ["default/a", "default/b"];
        assert_eq!(dirtied(&mut store, Change::Slice(slice("s", Some("b")))), both);
        assert_eq!(store.slices(&ObjectName::new("default", "a")).count(), 0);
        assert_eq!(store.slices(&ObjectName::new("default", "b")).count(), 1);
        assert_eq!(dirtied(&mut store, Change::Slice(slice("s", None))), ["default/b"]);
        assert!(dirtied(&mut store, Change::SliceGone(ObjectName::new("default", "s"))).is_empty());
        assert_eq!(store.slices(&ObjectName::new("default", "b")).count(), 0);
    }

    #[test]
    fn deleted_node_keeps_addresses_pod_cidrs_and_zone() {
        let whole = node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], Some("a"));
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        store.apply(Change::NodeGone, &mut dirty);
        assert!(dirty.is_empty());
        assert_eq!(store.last_known_node(), None);
        store.apply(Change::Node(whole.clone()), &mut dirty);
        assert_eq!(store.node(), Some(&whole));

        let mut dirty = Dirty::default();
        store.apply(Change::NodeGone, &mut dirty);
        assert!(dirty.node_context, "its eligibility changes");
        assert_eq!(store.node(), None);
        assert_eq!(store.last_known_node(), Some(&whole));

        let mut dirty = Dirty::default();
        store.apply(Change::NodeGone, &mut dirty);
        assert!(dirty.is_empty());
        store.apply(Change::Node(whole.clone()), &mut dirty);
        assert!(dirty.node_context, "its eligibility changes");
        assert_eq!(store.node(), Some(&whole));
    }

    #[test]
    fn node_registered_again_keeps_what_it_has_not_got_yet() {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        let whole = node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], Some("a"));
        store.apply(Change::Node(whole), &mut dirty);
        for (written, known) in [
            (node(&[], &[], None), node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], None)),
            (
                node(&["192.0.2.2"], &["fd00:244::/64"], Some("b")),
                node(&["192.0.2.2", "2001:db8::1"], &["fd00:244::/64", "10.244.0.0/24"], Some("b")),
            ),
        ] {
            store.apply(Change::NodeGone, &mut dirty);
            store.apply(Change::Node(written), &mut dirty);
            assert_eq!(store.node(), Some(&known));
        }
    }

    #[test]
    fn a_list_drops_what_it_does_not_name_and_nothing_else() {
        let mut store = Store::new();
        for name in ["s", "t"] {
            dirtied(&mut store, Change::Slice(slice(name, Some(name))));
        }
        let nets: Vec<IpNet> = vec!["10.96.0.0/16".parse().unwrap()];
        dirtied(&mut store, Change::ServiceCidr("kubernetes".into(), nets));
        let both = HashSet::from(["s", "t"].map(|name| ObjectName::new("default", name)));
        assert!(dirtied(&mut store, Change::Listed(Listed::Slices(both))).is_empty());
        let one = HashSet::from([ObjectName::new("default", "t")]);
        assert_eq!(dirtied(&mut store, Change::Listed(Listed::Slices(one))), ["default/s"]);
        assert_eq!(store.slices(&ObjectName::new("default", "s")).count(), 0);
        assert_eq!(store.slices(&ObjectName::new("default", "t")).count(), 1);
        assert!(dirtied(&mut store, Change::Listed(Listed::Services(HashSet::new()))).is_empty());
        assert_eq!(store.service_cidrs().count(), 1);
        let mut dirty = Dirty::default();
        store.apply(Change::Listed(Listed::ServiceCidrs(HashSet::new())), &mut dirty);
        assert!(dirty.node_context);
        assert_eq!(store.service_cidrs().count(), 0);
    }
}
