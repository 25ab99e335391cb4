//! Reads the rules of kube-proxy's nftables mode.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use nfnetlink::nft::{DumpedSet, ElementData, Error, Kernel, Verdict};
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::{FrontendKey, SourceRange};

use super::forwarding::{
    Forwarding, Frontend, LocalTraffic, Mode, NodePortAddresses, Outcome, Settings, Sources,
    before, merged,
};
use super::rules::{Action, Condition, MapValue, Rule, Table};
use super::walk::{Client, Walk};
use crate::dataplane::{KUBE_PROXY, table_family};

/// kube-proxy's named sets and maps.
const SERVICE_IPS: &str = "service-ips";
const SERVICE_NODEPORTS: &str = "service-nodeports";
const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
const NO_ENDPOINT_NODEPORTS: &str = "no-endpoint-nodeports";
const FIREWALL_IPS: &str = "firewall-ips";
const CLUSTER_IPS: &str = "cluster-ips";
const NODEPORT_IPS: &str = "nodeport-ips";
/// kube-proxy's chains.
const SERVICES: &str = "services";
const REJECT: &str = "reject-chain";

/// Reads the tables of both families; `None` if there is none.
///
/// # Errors
/// [`Error::Interrupted`] if another process commits during the listing.
pub(super) fn read(kernel: &mut dyn Kernel) -> Result<Option<Forwarding>, Error> {
    let (mut frontends, mut settings) = (BTreeMap::new(), BTreeMap::new());
    for family in Family::ALL {
        if kernel.table(table_family(family), KUBE_PROXY)?.is_some() {
            let found = Found::read(kernel, family)?;
            settings.insert(family, found.settings());
            frontends.extend(found.frontends());
        }
    }
    let found = !settings.is_empty();
    Ok(found.then_some(Forwarding { mode: Mode::Nftables, frontends, settings }))
}

/// An element of a map of frontends.
struct Entry {
    verdict: Verdict,
    comment: Option<String>,
}

/// The content of a table.
struct Found {
    family: Family,
    table: Table,
    maps: HashMap<&'static str, BTreeMap<FrontendKey, Entry>>,
    node_ports: BTreeSet<IpAddr>,
    /// The ranges of the anonymous sets with allowed sources.
    ranges: HashMap<String, Vec<SourceRange>>,
}

impl Found {
    fn read(kernel: &mut dyn Kernel, family: Family) -> Result<Found, Error> {
        let in_kernel = table_family(family);
        let sets: HashMap<String, DumpedSet> =
            kernel.sets(in_kernel, KUBE_PROXY)?.into_iter().map(|s| (s.name.clone(), s)).collect();
        let mut table = Table::default();
        for set in sets.values() {
            let seconds = set.timeout.map(|timeout| timeout.div_ceil(1_000));
            let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
            table.timeouts.extend(seconds.map(|seconds| (set.name.clone(), seconds)));
        }
        for rule in kernel.rules(in_kernel, KUBE_PROXY)? {
            let lengths = |set: &str| sets.get(set).map(DumpedSet::lengths);
            let expires = |set: &str| sets.get(set).is_some_and(|set| set.timeout.is_some());
            let read = Rule::read(family, &rule, lengths, expires);
            table.chains.entry(rule.chain).or_default().push(read);
        }
        let mut found = Found {
            family,
            table,
            maps: HashMap::new(),
            node_ports: BTreeSet::new(),
            ranges: HashMap::new(),
        };
        let maps = [
            SERVICE_IPS,
            SERVICE_NODEPORTS,
            NO_ENDPOINT_SERVICES,
            NO_ENDPOINT_NODEPORTS,
            FIREWALL_IPS,
        ];
        for map in maps.into_iter().filter(|map| sets.contains_key(*map)) {
            let entries = found.maps.entry(map).or_default();
            kernel.elements(in_kernel, KUBE_PROXY, map, &mut |element| {
                let verdict = element.data.and_then(Verdict::of_element);
                let comment = element.comment.map(str::to_owned);
                let entry = verdict.map(|verdict| Entry { verdict, comment });
                entries.extend(frontend_key(family, element.key).zip(entry));
            })?;
        }
        if sets.contains_key(NODEPORT_IPS) {
            kernel.elements(in_kernel, KUBE_PROXY, NODEPORT_IPS, &mut |element| {
                found.node_ports.extend(address(family, element.key));
            })?;
        }
        for map in found.table.random_maps() {
            let values = found.table.maps.entry(map.clone()).or_default();
            kernel.elements(in_kernel, KUBE_PROXY, &map, &mut |element| {
                values.extend(element.data.and_then(|data| match data {
                    ElementData::Value(bytes) => Some(MapValue::Bytes(bytes.to_vec())),
                    verdict => Verdict::of_element(verdict).map(MapValue::Verdict),
                }));
            })?;
        }
        for set in found.source_sets() {
            let mut bounds = Vec::new();
            kernel.elements(in_kernel, KUBE_PROXY, &set, &mut |element| {
                bounds.extend(address(family, element.key).map(|it| (it, element.ends_range)));
            })?;
            found.ranges.insert(set, ranges(family, bounds));
        }
        Ok(found)
    }

    /// Returns the names of the sets of allowed sources.
    fn source_sets(&self) -> BTreeSet<String> {
        let conditions = self.table.chains.values().flatten().flat_map(|rule| &rule.conditions);
        conditions
            .filter_map(|condition| match condition {
                Condition::SourceSet(set, _) => Some(set.clone()),
                _ => None,
            })
            .collect()
    }

    fn settings(&self) -> Settings {
        let mut settings =
            Settings { local_traffic: LocalTraffic::NotDetected, ..Settings::default() };
        for rule in self.table.rules(SERVICES) {
            let to_cluster_ips =
                rule.conditions.contains(&Condition::DestinationSet(CLUSTER_IPS.to_owned()));
            if rule.action == Action::SetMark && to_cluster_ips {
                let criterion = rule.conditions.iter().find_map(|it| it.local_traffic(self.family));
                settings.masquerade_all |= criterion.is_none();
                settings.local_traffic = criterion.map_or(LocalTraffic::Unknown, LocalTraffic::By);
            }
            if let Action::Unknown(what) = &rule.action
                && what.contains(SERVICE_NODEPORTS)
            {
                let by_set =
                    rule.conditions.contains(&Condition::DestinationSet(NODEPORT_IPS.to_owned()));
                settings.node_port_addresses = Some(match by_set {
                    true => NodePortAddresses::Only(self.node_ports.clone()),
                    false => NodePortAddresses::All,
                });
            }
        }
        settings
    }

    fn frontends(&self) -> BTreeMap<FrontendKey, Frontend> {
        let of = |map| self.maps.get(map).into_iter().flatten();
        let keys: BTreeSet<FrontendKey> =
            [SERVICE_IPS, SERVICE_NODEPORTS, NO_ENDPOINT_SERVICES, NO_ENDPOINT_NODEPORTS]
                .into_iter()
                .flat_map(of)
                .map(|(key, _)| *key)
                .collect();
        keys.into_iter().map(|key| (key, self.frontend(key))).collect()
    }

    fn frontend(&self, key: FrontendKey) -> Frontend {
        let (services, no_endpoints) = match key {
            FrontendKey::Address(..) => (SERVICE_IPS, NO_ENDPOINT_SERVICES),
            FrontendKey::NodePort(..) => (SERVICE_NODEPORTS, NO_ENDPOINT_NODEPORTS),
        };
        let entry = |map| self.maps.get(map).and_then(|entries| entries.get(&key));
        let service = entry(services);
        let without = entry(no_endpoints);
        let chain = service.and_then(|entry| match &entry.verdict {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain.as_str()),
            _ => None,
        });
        let walk = |client| {
            let walk = chain.map(|chain| Walk::new(&self.table, self.family, chain, client));
            walk.unwrap_or_default()
        };
        let otherwise = |outcome| match (outcome, without.map(|entry| &entry.verdict)) {
            (Outcome::Untranslated, Some(Verdict::Drop)) => Outcome::Drop,
            (Outcome::Untranslated, Some(Verdict::Goto(chain))) if chain == REJECT => {
                Outcome::Reject
            }
            (outcome, _) => outcome,
        };
        let (outside, node) = (walk(Client::Outside), walk(Client::Node));
        let comment = [without, service].into_iter().flatten().find_map(|it| it.comment.clone());
        Frontend {
            label: comment.or_else(|| label(chain?)),
            outcome: otherwise(outside.outcome()),
            from_node: otherwise(node.outcome()),
            masquerade: outside.marked,
            affinity: outside.affinity.or(node.affinity),
            sources: self.sources(key),
            unknown: outside.unknown.into_iter().chain(node.unknown).collect(),
        }
    }

    fn sources(&self, key: FrontendKey) -> Sources {
        let firewall = self.maps.get(FIREWALL_IPS).and_then(|entries| entries.get(&key));
        let Some(Entry { verdict: Verdict::Goto(chain), .. }) = firewall else {
            return Sources::All;
        };
        let conditions = self.table.rules(chain).iter().flat_map(|rule| &rule.conditions);
        let mut sets = conditions.filter_map(|condition| match condition {
            Condition::SourceSet(set, false) => self.ranges.get(set).cloned(),
            // A single range is no set.
            Condition::Source(net, false) => {
                Some(vec![SourceRange { first: net.network(), last: net.broadcast() }])
            }
            _ => None,
        });
        sets.next().map_or(Sources::Unknown, Sources::Only)
    }
}

/// Reads `namespace/name:port` from the name of a chain such as
/// `service-NEES3FOY-namespace/name/tcp/port`. kube-proxy cuts long names.
fn label(chain: &str) -> Option<String> {
    let (_, rest) = chain.split_once('-')?;
    let (_, rest) = rest.split_once('-')?;
    let mut parts = rest.split('/');
    let (namespace, name, _, port) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let whole = !chain.ends_with("...") && parts.next().is_none();
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    whole.then(|| format!("{namespace}/{name}{port}"))
}

/// Reads an address and, behind it, protocol and port; or only the latter.
fn frontend_key(family: Family, bytes: &[u8]) -> Option<FrontendKey> {
    let (address_bytes, rest) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let protocol = Protocol::from_number(*rest.first()?)?;
    let port = u16::from_be_bytes([*rest.get(4)?, *rest.get(5)?]);
    if address_bytes.is_empty() {
        return Some(FrontendKey::NodePort(family, protocol, port));
    }
    Some(FrontendKey::Address(address(family, address_bytes)?, protocol, port))
}

fn address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    nfnetlink::attr::ip(bytes).filter(|address| Family::of(*address) == family)
}

/// Reads ranges from their first addresses, and the addresses behind them.
fn ranges(family: Family, mut bounds: Vec<(IpAddr, bool)>) -> Vec<SourceRange> {
    let highest = match family {
        Family::V4 => IpAddr::V4(std::net::Ipv4Addr::BROADCAST),
        Family::V6 => IpAddr::V6(std::net::Ipv6Addr::from(u128::MAX)),
    };
    // The end of a range comes before the start of the next one at the same address.
    bounds.sort_by_key(|(address, ends)| (*address, !ends));
    let mut ranges = Vec::new();
    let mut bounds = bounds.into_iter().peekable();
    while let Some((first, ends)) = bounds.next() {
        if !ends {
            let end = bounds.peek().filter(|(_, ends)| *ends).and_then(|(end, _)| before(*end));
            ranges.push(SourceRange { first, last: end.unwrap_or(highest) });
        }
    }
    merged(ranges)
}

impl Condition {
    /// Returns the criterion for local traffic, if this condition excludes it, in nft's syntax.
    pub(super) fn local_traffic(&self, family: Family) -> Option<String> {
        let ip = if family == Family::V4 { "ip" } else { "ip6" };
        match self {
            Condition::Source(net, false) => Some(format!("{ip} saddr {net}")),
            Condition::Interface(name, false) => Some(format!("iifname \"{name}\"")),
            _ => None,
        }
    }
}
