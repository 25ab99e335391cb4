//! The store of known objects, and the Services to plan again after a change.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Change, Dirty, EndpointSlice, Ignored, Kind, Node, ObjectName, Service, SharedMap};

/// A store of all currently known objects. A clone costs nothing, and stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Store {
    services: SharedMap<ObjectName, Arc<Service>>,
    /// The Services that shunt does not implement.
    ignored: SharedMap<ObjectName, Ignored>,
    slices: SharedMap<ObjectName, Arc<EndpointSlice>>,
    /// The slices of each Service, sorted by name.
    slices_of: SharedMap<ObjectName, Vec<Arc<EndpointSlice>>>,
    /// The last known state of the agent's Node, even if it no longer exists.
    node: Option<Arc<Node>>,
    node_exists: bool,
    node_read: bool,
    service_cidrs: SharedMap<ObjectName, Vec<IpNet>>,
    interface_addresses: Arc<BTreeSet<IpAddr>>,
    synced: bool,
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
            Change::ServiceIgnored(name, reason) => {
                let changed = self.ignored.get(&name) != Some(&reason);
                self.ignored.insert_mut(name.clone(), reason);
                return self.drop_service(name, dirty) || changed;
            }
            Change::Gone(Kind::Service, name) => {
                let was_ignored = self.ignored.remove_mut(&name);
                return self.drop_service(name, dirty) || was_ignored;
            }
            Change::Slice(slice) => return self.apply_slice(slice, dirty),
            Change::Gone(Kind::EndpointSlice, name) => return self.drop_slice(&name, dirty),
            Change::Listed(kind, names) => {
                let gone = self.others(kind, &names).into_iter();
                return gone.fold(false, |changed, change| self.apply(change, dirty) | changed);
            }
            Change::Node(node) => self.set_node(*node),
            Change::Gone(Kind::Node, _) => {
                self.node_read = true;
                std::mem::take(&mut self.node_exists)
            }
            Change::NodeRemembered(node) => {
                let is_news = self.node.is_none();
                self.node.get_or_insert_with(|| Arc::new(*node));
                is_news
            }
            Change::ServiceCidr(name, nets) => {
                let changed = self.service_cidrs.get(&name) != Some(&nets);
                self.service_cidrs.insert_mut(name, nets);
                changed
            }
            Change::Gone(Kind::ServiceCidr, name) => self.service_cidrs.remove_mut(&name),
            Change::InterfaceAddresses(addresses) => {
                let changed = *self.interface_addresses != addresses;
                self.interface_addresses = Arc::new(addresses);
                changed
            }
            Change::Synced => !std::mem::replace(&mut self.synced, true),
        };
        dirty.node_context |= changed;
        changed
    }

    fn apply_service(&mut self, service: Arc<Service>, dirty: &mut Dirty) -> bool {
        self.ignored.remove_mut(&service.name);
        if self.services.get(&service.name) == Some(&service) {
            return false;
        }
        dirty.services.insert(service.name.clone());
        self.services.insert_mut(service.name.clone(), service);
        true
    }

    fn drop_service(&mut self, name: ObjectName, dirty: &mut Dirty) -> bool {
        let changed = self.services.remove_mut(&name);
        if changed {
            dirty.services.insert(name);
        }
        changed
    }

    fn drop_slice(&mut self, name: &ObjectName, dirty: &mut Dirty) -> bool {
        let Some(old) = self.slices.get(name).cloned() else { return false };
        self.slices.remove_mut(name);
        let Some(service) = old.service_name() else { return true };
        if let Some(slices) = self.slices_of.get_mut(&service) {
            slices.retain(|known| known.name != *name);
            if slices.is_empty() {
                self.slices_of.remove_mut(&service);
            }
        }
        dirty.services.insert(service);
        true
    }

    /// Returns the changes that make the objects as they are now, for the time after this change:
    /// one for each Service, EndpointSlice, Node or ServiceCIDR that it is about.
    #[must_use]
    pub fn before(&self, change: &Change) -> Vec<Change> {
        let nameless = ObjectName::new("", "");
        let (kind, name) = match change {
            Change::Service(new) => (Kind::Service, &new.name),
            Change::ServiceIgnored(name, _) => (Kind::Service, name),
            Change::Slice(new) => (Kind::EndpointSlice, &new.name),
            Change::Node(_) => (Kind::Node, &nameless),
            Change::ServiceCidr(name, _) => (Kind::ServiceCidr, name),
            Change::Gone(kind, name) => (*kind, name),
            Change::Listed(kind, names) => {
                return self
                    .others(*kind, names)
                    .iter()
                    .flat_map(|gone| self.before(gone))
                    .collect();
            }
            Change::NodeRemembered(_) | Change::InterfaceAddresses(_) | Change::Synced => {
                return Vec::new();
            }
        };
        let ignored = || {
            let why = self.ignored.get(name)?;
            Some(Change::ServiceIgnored(name.clone(), why.clone()))
        };
        let known = match kind {
            Kind::Service => self.services.get(name).cloned().map(Change::Service).or_else(ignored),
            Kind::EndpointSlice => self.slices.get(name).cloned().map(Change::Slice),
            Kind::Node => self.node().cloned().map(Change::node),
            Kind::ServiceCidr => {
                let nets = self.service_cidrs.get(name).cloned();
                nets.map(|nets| Change::ServiceCidr(name.clone(), nets))
            }
        };
        vec![known.unwrap_or_else(|| Change::Gone(kind, name.clone()))]
    }

    /// Returns the changes that delete all objects of a kind that a list does not name.
    fn others(&self, kind: Kind, names: &HashSet<ObjectName>) -> Vec<Change> {
        let others = |known: &mut dyn Iterator<Item = &ObjectName>| -> Vec<Change> {
            let gone = known.filter(|name| !names.contains(*name));
            gone.map(|name| Change::Gone(kind, name.clone())).collect()
        };
        match kind {
            Kind::Service => others(&mut self.services.keys().chain(self.ignored.keys())),
            Kind::EndpointSlice => others(&mut self.slices.keys()),
            // That there is none is news even if none was known.
            Kind::Node if names.is_empty() => vec![Change::Gone(kind, ObjectName::new("", ""))],
            Kind::Node => Vec::new(),
            Kind::ServiceCidr => others(&mut self.service_cidrs.keys()),
        }
    }

    fn apply_slice(&mut self, slice: Arc<EndpointSlice>, dirty: &mut Dirty) -> bool {
        let old = self.slices.get(&slice.name);
        if old == Some(&slice) {
            return false;
        }
        if old.is_some_and(|old| old.service != slice.service) {
            // A slice that changes its Service leaves the old one at once.
            self.drop_slice(&slice.name, dirty);
        }
        if let Some(service) = slice.service_name() {
            match self.slices_of.get_mut(&service) {
                Some(slices) => match slices.binary_search_by(|it| it.name.cmp(&slice.name)) {
                    Ok(place) => slices[place] = slice.clone(),
                    Err(place) => slices.insert(place, slice.clone()),
                },
                None => self.slices_of.insert_mut(service.clone(), vec![slice.clone()]),
            }
            dirty.services.insert(service);
        }
        self.slices.insert_mut(slice.name.clone(), slice);
        true
    }

    fn set_node(&mut self, mut node: Node) -> bool {
        match &self.node {
            // What an earlier agent knew may have been taken from the Node since then.
            Some(known) if known.name == node.name && !self.node_read => node.keep_lacking(known),
            Some(known) if known.name == node.name => node.keep_missing(known),
            _ => {}
        }
        let changed = self.node.as_deref() != Some(&node) || !self.node_exists;
        self.node = Some(Arc::new(node));
        self.node_exists = true;
        self.node_read = true;
        changed
    }

    /// Returns true once the source has listed all kinds: an earlier plan would be incomplete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns all Services, by name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|service| &**service)
    }

    /// Returns the Services that shunt does not implement, by name.
    #[must_use]
    pub fn ignored(&self) -> &SharedMap<ObjectName, Ignored> {
        &self.ignored
    }

    /// Returns the number of Services.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.services.size()
    }

    /// Returns the sum of the port counts of all Services.
    #[must_use]
    pub fn service_port_count(&self) -> usize {
        self.services().map(|service| service.ports.len()).sum()
    }

    /// Returns the number of endpoints in all EndpointSlices.
    #[must_use]
    pub fn endpoint_count(&self) -> usize {
        self.all_slices().map(|slice| slice.endpoints.len()).sum()
    }

    /// Returns the number of EndpointSlices.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.slices.size()
    }

    /// Returns the Service of that name.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name).map(|service| &**service)
    }

    /// Returns the EndpointSlices of a Service, sorted by name.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> + Clone {
        self.slices_of.get(service).into_iter().flatten().map(|slice| &**slice)
    }

    /// Returns the EndpointSlice of that name.
    #[must_use]
    pub fn slice(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        self.slices.get(name).map(|slice| &**slice)
    }

    /// Returns all EndpointSlices, by name.
    pub fn all_slices(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.slices.values().map(|slice| &**slice)
    }

    /// Returns the last known state of the agent's Node, even after its deletion.
    #[must_use]
    pub fn last_known_node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Returns the agent's Node; `None` after its deletion.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.last_known_node().filter(|_| self.node_exists)
    }

    /// Returns true once the source has sent the agent's Node, or that there is none.
    #[must_use]
    pub fn is_node_read(&self) -> bool {
        self.node_read
    }

    /// Returns the changes that make an empty store hold the same Node, ServiceCIDRs and addresses,
    /// and those Services that `wanted` selects by their name and, unless shunt ignores them, by
    /// their content, with their EndpointSlices.
    #[must_use]
    pub fn excerpt(&self, wanted: impl Fn(&ObjectName, Option<&Service>) -> bool) -> Vec<Change> {
        let mut changes: Vec<Change> =
            self.node.iter().map(|node| Change::node(Node::clone(node))).collect();
        if !self.node_exists {
            changes.push(Change::Gone(Kind::Node, ObjectName::new("", "")));
        }
        let cidrs = self.service_cidrs.iter();
        changes.extend(cidrs.map(|(name, nets)| Change::ServiceCidr(name.clone(), nets.clone())));
        changes.push(Change::InterfaceAddresses(BTreeSet::clone(&self.interface_addresses)));
        let services =
            self.services.values().filter(|service| wanted(&service.name, Some(service)));
        changes.extend(services.cloned().map(Change::Service));
        let ignored = self.ignored.iter().filter(|(name, why)| match why {
            Ignored::OtherProxy(_, service) => wanted(name, Some(service)),
            _ => wanted(name, None),
        });
        changes
            .extend(ignored.map(|(name, why)| Change::ServiceIgnored(name.clone(), why.clone())));
        for (service, slices) in &self.slices_of {
            if wanted(service, self.service(service)) {
                changes.extend(slices.iter().cloned().map(Change::Slice));
            }
        }
        changes.extend(self.synced.then_some(Change::Synced));
        changes
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
    use crate::model::Family;

    fn slice(name: &str, service: Option<&str>) -> EndpointSlice {
        EndpointSlice {
            name: ObjectName::new("default", name),
            service: service.map(Arc::from),
            family: Family::V4,
            weight: None,
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

    fn node_gone() -> Change {
        Change::Gone(Kind::Node, ObjectName::new("", "node-1"))
    }

    fn dirtied(store: &mut Store, change: Change) -> Vec<String> {
        let mut dirty = Dirty::default();
        let has_changed = store.apply(change, &mut dirty);
        assert!(has_changed || dirty.is_empty());
        let mut names: Vec<String> = dirty.services.iter().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn a_slice_that_changes_its_service_leaves_the_old_one_at_once() {
        let mut store = Store::new();
        assert_eq!(dirtied(&mut store, Change::slice(slice("s", Some("a")))), ["default/a"]);
        assert!(dirtied(&mut store, Change::slice(slice("s", Some("a")))).is_empty());
        let both = ["default/a", "default/b"];
        assert_eq!(dirtied(&mut store, Change::slice(slice("s", Some("b")))), both);
        assert_eq!(store.slices(&ObjectName::new("default", "a")).count(), 0);
        assert_eq!(store.slices(&ObjectName::new("default", "b")).count(), 1);
        assert_eq!(dirtied(&mut store, Change::slice(slice("s", None))), ["default/b"]);
        assert!(
            dirtied(&mut store, Change::Gone(Kind::EndpointSlice, ObjectName::new("default", "s")))
                .is_empty()
        );
        assert_eq!(store.slices(&ObjectName::new("default", "b")).count(), 0);
    }

    #[test]
    fn an_excerpt_rebuilds_the_selected_part() {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        let (a, b) = (ObjectName::new("default", "a"), ObjectName::new("default", "b"));
        for change in [
            Change::slice(slice("a-1", Some("a"))),
            Change::slice(slice("b-1", Some("b"))),
            Change::ServiceIgnored(a.clone(), Ignored::Headless),
            Change::ServiceIgnored(b.clone(), Ignored::ExternalName),
            Change::ServiceCidr(
                ObjectName::new("", "kubernetes"),
                vec!["10.96.0.0/16".parse().unwrap()],
            ),
            Change::node(node(&["192.0.2.1"], &[], None)),
            node_gone(),
            Change::InterfaceAddresses(["192.0.2.1".parse().unwrap()].into()),
            Change::Synced,
        ] {
            assert!(store.apply(change, &mut dirty));
        }
        let mut part = Store::new();
        for change in store.excerpt(|name, _| *name == a) {
            part.apply(change, &mut dirty);
        }
        assert_eq!(part.ignored().keys().collect::<Vec<_>>(), [&a]);
        assert_eq!((part.slices(&a).count(), part.slices(&b).count()), (1, 0));
        assert_eq!(part.last_known_node(), store.last_known_node());
        assert_eq!((part.node(), part.service_cidrs().count()), (None, 1));
        assert!(part.is_synced() && part.interface_addresses().len() == 1);
    }

    #[test]
    fn ignored_service_has_no_frontend_until_it_changes() {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        let name = ObjectName::new("default", "a");
        let ignored = Change::ServiceIgnored(name.clone(), Ignored::Headless);
        assert!(store.apply(ignored.clone(), &mut dirty));
        assert!(!store.apply(ignored, &mut dirty));
        assert!(dirty.is_empty());
        assert!(store.apply(Change::Gone(Kind::Service, name), &mut dirty));
        assert!(store.ignored().is_empty() && dirty.is_empty());
    }

    #[test]
    fn deleted_node_keeps_addresses_pod_cidrs_and_zone() {
        let whole = node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], Some("a"));
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        store.apply(node_gone(), &mut dirty);
        assert!(dirty.is_empty());
        assert_eq!(store.last_known_node(), None);
        store.apply(Change::node(whole.clone()), &mut dirty);
        assert_eq!(store.node(), Some(&whole));

        let mut dirty = Dirty::default();
        store.apply(node_gone(), &mut dirty);
        assert!(dirty.node_context, "its eligibility changes");
        assert_eq!(store.node(), None);
        assert_eq!(store.last_known_node(), Some(&whole));

        let mut dirty = Dirty::default();
        store.apply(node_gone(), &mut dirty);
        assert!(dirty.is_empty());
        store.apply(Change::node(whole.clone()), &mut dirty);
        assert!(dirty.node_context, "its eligibility changes");
        assert_eq!(store.node(), Some(&whole));
    }

    #[test]
    fn node_registered_again_keeps_what_it_has_not_got_yet() {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        let whole = node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], Some("a"));
        store.apply(Change::node(whole), &mut dirty);
        for (written, known) in [
            (node(&[], &[], None), node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], None)),
            (
                node(&["192.0.2.2"], &["fd00:244::/64"], Some("b")),
                node(&["192.0.2.2", "2001:db8::1"], &["fd00:244::/64", "10.244.0.0/24"], Some("b")),
            ),
        ] {
            store.apply(node_gone(), &mut dirty);
            store.apply(Change::node(written), &mut dirty);
            assert_eq!(store.node(), Some(&known));
        }
    }

    #[test]
    fn remembered_node_fills_only_what_the_node_has_none_of() {
        let whole = node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], Some("a"));
        let other = Node { name: "node-2".into(), ..node(&["192.0.2.2"], &[], None) };
        for (written, known) in [
            (node(&[], &[], None), node(&["192.0.2.1", "2001:db8::1"], &["10.244.0.0/24"], None)),
            // Meanwhile it has lost a family.
            (node(&["192.0.2.1"], &["10.244.0.0/24"], None), {
                node(&["192.0.2.1"], &["10.244.0.0/24"], None)
            }),
            (other.clone(), other),
        ] {
            let (mut store, mut dirty) = (Store::new(), Dirty::default());
            assert!(store.apply(Change::NodeRemembered(whole.clone().into()), &mut dirty));
            assert_eq!((store.last_known_node(), store.node()), (Some(&whole), None));
            assert!(!store.is_node_read());
            store.apply(Change::node(written), &mut dirty);
            assert_eq!(store.node(), Some(&known));
            assert!(!store.apply(Change::NodeRemembered(whole.clone().into()), &mut dirty));
        }
    }

    #[test]
    fn a_list_drops_what_it_does_not_name_and_nothing_else() {
        let mut store = Store::new();
        for name in ["s", "t"] {
            dirtied(&mut store, Change::slice(slice(name, Some(name))));
        }
        let nets: Vec<IpNet> = vec!["10.96.0.0/16".parse().unwrap()];
        dirtied(&mut store, Change::ServiceCidr(ObjectName::new("", "kubernetes"), nets));
        let both = HashSet::from(["s", "t"].map(|name| ObjectName::new("default", name)));
        assert!(dirtied(&mut store, Change::Listed(Kind::EndpointSlice, both.into())).is_empty());
        let one = HashSet::from([ObjectName::new("default", "t")]);
        assert_eq!(
            dirtied(&mut store, Change::Listed(Kind::EndpointSlice, one.into())),
            ["default/s"]
        );
        assert_eq!(store.slices(&ObjectName::new("default", "s")).count(), 0);
        assert_eq!(store.slices(&ObjectName::new("default", "t")).count(), 1);
        assert!(dirtied(&mut store, Change::Listed(Kind::Service, Arc::default())).is_empty());
        assert_eq!(store.service_cidrs().count(), 1);
        let mut dirty = Dirty::default();
        store.apply(Change::Listed(Kind::ServiceCidr, Arc::default()), &mut dirty);
        assert!(dirty.node_context);
        assert_eq!(store.service_cidrs().count(), 0);
    }
}
