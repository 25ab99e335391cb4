//! What a namespace holds of us, in a form that does not depend on the order of events.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use nfnetlink::nft::{DumpedChain, DumpedRule, Error, Kernel, TableFamily};
use shunt::dataplane::{Quarantined, Suspect};
use shunt_core::model::{Backend, Family};
use shunt_core::plan::{ChainName, Desired, Field, FrontendKey, Set, SetMember, TABLE};
use shunt_fake_nftables::{ListedElement, Listing, Namespace};

pub(crate) const FAMILIES: [(Family, TableFamily); 2] =
    [(Family::V4, TableFamily::Ip), (Family::V6, TableFamily::Ip6)];

/// Where a chain or element is.
type Place = (TableFamily, String);

/// What a namespace holds, without what packets have taught it.
#[derive(Debug, Default)]
pub(crate) struct Content {
    chains: BTreeMap<Place, (DumpedChain, Vec<DumpedRule>)>,
    /// With the number of slots, since a backend may have several.
    elements: BTreeMap<(Place, ListedElement), usize>,
    sets: BTreeMap<Place, String>,
    comments: BTreeMap<TableFamily, Option<String>>,
    /// What packets have taught it: client and frontend, backend.
    pub(crate) learned: BTreeSet<(TableFamily, Vec<u8>, Vec<u8>)>,
}

impl Content {
    /// Reads it all but what is about suspects.
    pub(crate) fn of(namespace: &Namespace, set_aside: &[Quarantined]) -> Result<Content, Error> {
        let excused = Excused::new(set_aside);
        let mut content = Content::default();
        let mut kernel = namespace.open();
        for (_, family) in FAMILIES {
            let Some(listing) = Listing::of(&mut kernel, family, TABLE)? else { continue };
            content.comments.insert(family, listing.table.comment);
            let place = |name: &str| (family, name.to_owned());
            for chain in listing.chains {
                content.chains.insert(place(&chain.name), (chain, Vec::new()));
            }
            for mut rule in listing.rules {
                rule.handle = 0;
                content.chains.entry(place(&rule.chain)).and_modify(|(_, rules)| rules.push(rule));
            }
            for set in &listing.sets {
                // The size of a hashed set grows, and never shrinks.
                let mut set = set.clone();
                set.size = set.size.map(|_| 0);
                content.sets.insert(place(&set.name), format!("{set:?}"));
            }
            for (name, elements) in listing.elements {
                let set = Set::from_name(&name);
                for mut element in elements {
                    if set.is_some_and(Set::is_dynamic) {
                        let data = element.data.unwrap_or_default();
                        content.learned.insert((family, element.key, data));
                        continue;
                    }
                    if set.is_some_and(|set| excused.holds(family, set, &element.key)) {
                        continue;
                    }
                    if set.is_some_and(|set| set.key().contains(&Field::Index)) {
                        // Who has which place depends on who came when.
                        element.key.truncate(element.key.len() - 4);
                    }
                    *content.elements.entry((place(&name), element)).or_default() += 1;
                }
            }
        }
        Ok(content)
    }

    /// True if the kernel sends clients of a frontend to a backend, and remembers them.
    pub(crate) fn teaches(&self, key: FrontendKey, backend: Backend) -> bool {
        let (field, bytes) = frontend_bytes(key);
        let family = table_family(key.family());
        let of_frontend: Vec<_> = self
            .elements
            .keys()
            .filter(|((of, _), element)| *of == family && element.key == bytes)
            .filter_map(|((_, name), element)| Some((Set::from_name(name)?, element)))
            .filter(|(set, _)| set.key().first() == Some(&field))
            .collect();
        let is_sticky = |set| matches!(set, Set::AffinityServices | Set::AffinityNodeports);
        let backend = backend_bytes(backend);
        of_frontend.iter().any(|(set, _)| is_sticky(*set))
            && of_frontend.iter().any(|(set, element)| {
                set.key().contains(&Field::Index) && element.data.as_ref() == Some(&backend)
            })
    }

    /// Fails unless there is all that a fresh start makes, and nothing else but chains that no
    /// frontend needs any more.
    pub(crate) fn equals(&self, fresh: &Content, anything_set_aside: bool) -> Result<()> {
        let beyond = |all: &Content, others: &Content| -> Vec<String> {
            let different =
                all.elements.iter().filter(|(it, n)| others.elements.get(it) != Some(n));
            different.map(|(it, count)| format!("{count} of {it:?}")).collect()
        };
        let (lacking, left) = (beyond(fresh, self), beyond(self, fresh));
        ensure!(lacking.is_empty() && left.is_empty(), "lacks {lacking:?}, and still has {left:?}");
        ensure!(self.sets == fresh.sets, "sets: {:?}", self.sets);
        ensure!(self.comments == fresh.comments, "tables: {:?}", self.comments);
        for (place, chain) in &fresh.chains {
            let there = self.chains.get(place);
            let excused = anything_set_aside && is_on_demand(&place.1);
            ensure!(excused || there == Some(chain), "chain {place:?}: {there:?}, not {chain:?}");
        }
        let foreign: Vec<_> = self
            .chains
            .keys()
            .filter(|place| !fresh.chains.contains_key(*place) && !is_on_demand(&place.1))
            .collect();
        ensure!(foreign.is_empty(), "still has the chains {foreign:?}");
        Ok(())
    }

    /// The chains that are there only while a frontend needs them.
    pub(crate) fn on_demand(&self) -> impl Iterator<Item = &Place> {
        self.chains.keys().filter(|place| is_on_demand(&place.1))
    }
}

fn is_on_demand(chain: &str) -> bool {
    ChainName::parse(chain).is_some_and(ChainName::is_on_demand)
}

/// What need not be as planned, since the kernel refuses it.
struct Excused(Vec<Excuse>);

/// Elements of one set or all whose keys begin with certain fields.
struct Excuse {
    family: TableFamily,
    only: Option<Set>,
    fields: Vec<Field>,
    bytes: Vec<u8>,
}

impl Excused {
    fn new(set_aside: &[Quarantined]) -> Excused {
        let one = |quarantined: &Quarantined| match quarantined.suspect {
            Suspect::Frontend(key) => {
                let (field, bytes) = frontend_bytes(key);
                let family = table_family(key.family());
                Excuse { family, only: None, fields: vec![field], bytes }
            }
            Suspect::Member(member @ SetMember { set, address }) => {
                let mut bytes = address_bytes(address);
                if set == Set::Hairpin {
                    bytes.extend_from_within(..);
                }
                let (family, fields) = (table_family(member.family()), set.key().to_vec());
                Excuse { family, only: Some(set), fields, bytes }
            }
        };
        Excused(set_aside.iter().map(one).collect())
    }

    fn holds(&self, family: TableFamily, set: Set, key: &[u8]) -> bool {
        self.0.iter().any(|excuse| {
            excuse.family == family
                && excuse.only.is_none_or(|only| only == set)
                && set.key().starts_with(&excuse.fields)
                && key.starts_with(&excuse.bytes)
        })
    }
}

pub(crate) fn table_family(family: Family) -> TableFamily {
    match family {
        Family::V4 => TableFamily::Ip,
        Family::V6 => TableFamily::Ip6,
    }
}

fn address_bytes(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// How the keys of a frontend's elements begin, and with which field.
pub(crate) fn frontend_bytes(key: FrontendKey) -> (Field, Vec<u8>) {
    let (field, mut bytes, protocol, port) = match key {
        FrontendKey::Address(address, protocol, port) => {
            (Field::Destination, address_bytes(address), protocol, port)
        }
        FrontendKey::NodePort(_, protocol, port) => (Field::Protocol, Vec::new(), protocol, port),
    };
    let [high, low] = port.to_be_bytes();
    bytes.extend_from_slice(&[protocol.number(), 0, 0, 0, high, low, 0, 0]);
    (field, bytes)
}

fn backend_bytes(backend: Backend) -> Vec<u8> {
    let [high, low] = backend.port.to_be_bytes();
    [&address_bytes(backend.address)[..], &[high, low, 0, 0]].concat()
}

/// What a client at that address learns of a frontend that sends it to that backend. For a node
/// port the address of the node is one that is no frontend.
pub(crate) fn affinity(key: FrontendKey, client: u8, backend: Backend) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = vec![client; if key.family() == Family::V4 { 4 } else { 16 }];
    let (field, frontend) = frontend_bytes(key);
    if field == Field::Protocol {
        bytes.extend_from_within(..);
    }
    bytes.extend(frontend);
    (bytes, backend_bytes(backend))
}

/// What becomes of something learned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The frontend has the backend for everybody.
    Stays,
    /// The frontend has it for some clients.
    MayStay,
    /// It does not have it.
    Goes,
}

/// What must become of something learned.
pub(crate) fn fate(desired: &Desired, family: TableFamily, key: &[u8], data: &[u8]) -> Fate {
    let width = if family == TableFamily::Ip { 4 } else { 16 };
    let sticky = |wanted: Field, bytes: &[u8]| {
        let frontends = desired.frontends();
        frontends
            .into_iter()
            .filter(|(key, frontend)| {
                table_family(key.family()) == family && frontend.affinity.is_some()
            })
            .find(|(key, _)| frontend_bytes(*key) == (wanted, bytes.to_vec()))
            .map(|(_, frontend)| frontend.clone())
    };
    let by_address = sticky(Field::Destination, &key[width..]);
    let Some(frontend) = by_address.or_else(|| sticky(Field::Protocol, &key[2 * width..])) else {
        return Fate::Goes;
    };
    let has = |pools: usize| {
        frontend.all_pools().into_iter().take(pools).flatten().any(|b| backend_bytes(*b) == data)
    };
    match (has(1), has(2)) {
        (true, _) => Fate::Stays,
        (false, true) => Fate::MayStay,
        _ => Fate::Goes,
    }
}

/// Flags of the tables that are there.
pub(crate) fn flags(namespace: &Namespace) -> Result<Vec<u32>, Error> {
    let mut kernel = namespace.open();
    let tables = FAMILIES.map(|(_, family)| kernel.table(family, TABLE));
    let tables: Vec<_> = tables.into_iter().collect::<Result<_, _>>()?;
    Ok(tables.into_iter().flatten().map(|table| table.flags).collect())
}
