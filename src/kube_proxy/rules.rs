//! The rules of a table in the form that kube-proxy's modes share: conditions, and an action.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nfnetlink::nft::{Comparison, DumpedRule, Operand, Statement, Verdict};
use shunt_core::model::{Backend, Family};

use super::extension;
use crate::dataplane::table_family;

/// A condition of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    /// The transport protocol has this number.
    Protocol(u8),
    /// The destination port.
    Port(u16),
    /// The destination address is in the prefix, or is not.
    Destination(IpNet, bool),
    /// The destination address is in a set.
    DestinationSet(String),
    /// The source address is in the prefix, or is not.
    Source(IpNet, bool),
    /// The source address is in a set, or is not.
    SourceSet(String, bool),
    /// The packet arrived on interfaces of this name, or did not. A prefix ends with `*`.
    Interface(String, bool),
    /// The source is an address of the node.
    SourceIsLocal,
    /// The destination is an address of the node.
    DestinationIsLocal,
    /// Holds at random, with this probability.
    Probability(f64),
    /// The client was sent here before, at most this number of seconds ago.
    Affinity(u32),
    /// The client was sent here before, by a set of clients.
    AffinitySet(String),
    /// A condition that is not understood.
    Unknown(String),
}

/// The action of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// None, or one that does not matter for the outcome.
    None,
    /// A verdict.
    Verdict(Verdict),
    /// A verdict of a map, by a random number below the modulus.
    RandomVerdict(String, u32),
    /// A backend of a map, by a random number below the modulus.
    RandomBackend(String, u32),
    /// Destination NAT.
    Translate(Backend),
    /// Rejects the packet.
    Reject,
    /// Sets bits of the packet mark.
    SetMark,
    /// An action that is not understood.
    Unknown(String),
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    pub(super) conditions: Vec<Condition>,
    pub(super) action: Action,
    pub(super) comment: Option<String>,
}

impl Condition {
    /// Returns true if the condition depends on the client.
    pub(super) fn is_about_source(&self) -> bool {
        matches!(
            self,
            Condition::Source(..)
                | Condition::SourceSet(..)
                | Condition::Interface(..)
                | Condition::SourceIsLocal
        )
    }
}

/// A value of a map.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MapValue {
    Verdict(Verdict),
    Bytes(Vec<u8>),
}

/// A table, as far as its chains are needed.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) chains: HashMap<String, Vec<Rule>>,
    /// The values of the maps.
    pub(super) maps: HashMap<String, Vec<MapValue>>,
    /// The timeouts of sets whose elements expire, in seconds.
    pub(super) timeouts: HashMap<String, u32>,
}

impl Table {
    /// Returns the rules of a chain; none if the table lacks it.
    pub(super) fn rules(&self, chain: &str) -> &[Rule] {
        self.chains.get(chain).map_or(&[], Vec::as_slice)
    }

    /// Returns the names of the anonymous maps and sets that the rules use. Named ones have no
    /// leading underscores.
    pub(super) fn random_maps(&self) -> BTreeSet<String> {
        let rules = self.chains.values().flatten();
        rules
            .filter_map(|rule| match &rule.action {
                Action::RandomVerdict(map, _) | Action::RandomBackend(map, _) => Some(map.clone()),
                _ => None,
            })
            .collect()
    }
}

impl Rule {
    /// Reads a rule of a table of that family.
    pub(super) fn read(
        family: Family,
        rule: &DumpedRule,
        lengths: impl Fn(&str) -> Option<(u32, u32)>,
        expires: impl Fn(&str) -> bool,
    ) -> Rule {
        let mut read = Rule::of(family, rule.statements(lengths), expires);
        read.comment = read.comment.or_else(|| rule.comment.clone());
        read
    }

    /// Makes a rule of its statements. `expires` returns true for a set whose elements expire.
    pub(super) fn of(
        family: Family,
        statements: Vec<Statement>,
        expires: impl Fn(&str) -> bool,
    ) -> Rule {
        let mut rule = Rule { conditions: Vec::new(), action: Action::None, comment: None };
        for statement in statements {
            rule.add(family, statement, &expires);
        }
        rule
    }

    fn add(&mut self, family: Family, statement: Statement, expires: &impl Fn(&str) -> bool) {
        match statement {
            Statement::Counter | Statement::Update { .. } | Statement::SetTimeouts(_) => {}
            Statement::Compare(operand, comparison, bytes) => {
                self.conditions.push(comparing(family, &operand, comparison, &bytes));
            }
            Statement::InSet { key, set, negate } => {
                let (source, destination) = addresses(family);
                let condition = match key.as_slice() {
                    [field] if *field == source && expires(&set) => Condition::AffinitySet(set),
                    [field] if *field == source => Condition::SourceSet(set, !negate),
                    [field] if *field == destination && !negate => Condition::DestinationSet(set),
                    _ => Condition::Unknown(format!("lookup in @{set}")),
                };
                self.conditions.push(condition);
            }
            Statement::VerdictMap { key, map } => {
                self.action = match key.as_slice() {
                    [Operand::Number { modulus, .. }] => Action::RandomVerdict(map, *modulus),
                    _ => Action::Unknown(format!("vmap @{map}")),
                };
            }
            Statement::Verdict(verdict) => self.action = Action::Verdict(verdict),
            Statement::DestinationNat { address, port } => {
                self.action = translation(family, address, port);
            }
            Statement::SetMark(_) => self.action = Action::SetMark,
            Statement::Reject { .. } => self.action = Action::Reject,
            Statement::Match(extension) => match extension::condition(&extension) {
                extension::Match::Comment(comment) => self.comment = Some(comment),
                extension::Match::Conditions(conditions) => self.conditions.extend(conditions),
            },
            Statement::Target(extension) => self.action = extension::action(family, &extension),
            Statement::Masquerade { .. } => self.action = Action::Unknown("masquerade".to_owned()),
            Statement::SourceNat { .. } => self.action = Action::Unknown("snat".to_owned()),
            Statement::Unknown(name) => self.conditions.push(Condition::Unknown(name)),
        }
    }
}

/// Returns the source and destination address in the network header of a family.
fn addresses(family: Family) -> (Operand, Operand) {
    match family {
        Family::V4 => {
            (Operand::Network { offset: 12, length: 4 }, Operand::Network { offset: 16, length: 4 })
        }
        Family::V6 => (
            Operand::Network { offset: 8, length: 16 },
            Operand::Network { offset: 24, length: 16 },
        ),
    }
}

fn comparing(family: Family, operand: &Operand, comparison: Comparison, bytes: &[u8]) -> Condition {
    let unknown = || {
        let statement = Statement::Compare(operand.clone(), comparison, bytes.to_vec());
        Condition::Unknown(statement.text(table_family(family)))
    };
    let is = match comparison {
        Comparison::Equal => true,
        Comparison::NotEqual => false,
        _ => return unknown(),
    };
    let (plain, mask) = match operand {
        Operand::Bits { of, mask, xor } if xor.iter().all(|byte| *byte == 0) => {
            (&**of, Some(mask.as_slice()))
        }
        plain => (plain, None),
    };
    // The protocol is in the network header of IPv4; `iptables-nft` before 1.8.4 compares it there.
    let protocol_at = if family == Family::V4 { 9 } else { 6 };
    match (plain, bytes) {
        (Operand::Protocol, [number]) if is => Condition::Protocol(*number),
        (Operand::Network { offset, length: 1 }, [number]) if *offset == protocol_at && is => {
            Condition::Protocol(*number)
        }
        (Operand::Transport { offset: 2, length: 2 }, [high, low]) if is && mask.is_none() => {
            Condition::Port(u16::from_be_bytes([*high, *low]))
        }
        (Operand::Network { offset, length }, bytes) if bytes.len() == *length as usize => {
            let (source, destination) = match family {
                Family::V4 => (12, 16),
                Family::V6 => (8, 24),
            };
            match prefix(family, bytes, mask) {
                Some(net) if *offset == source => Condition::Source(net, is),
                Some(net) if *offset == destination => Condition::Destination(net, is),
                _ => unknown(),
            }
        }
        (Operand::AddressType { source }, bytes)
            if is && bytes == u32::from(libc::RTN_LOCAL).to_ne_bytes() =>
        {
            if *source {
                Condition::SourceIsLocal
            } else {
                Condition::DestinationIsLocal
            }
        }
        (Operand::InputInterface, bytes) => {
            let end = bytes.iter().position(|byte| *byte == 0);
            let name = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
            let any = if end.is_none() { "*" } else { "" };
            Condition::Interface(format!("{name}{any}"), is)
        }
        _ => unknown(),
    }
}

/// Reads a prefix from the first bytes of an address, or from a whole address and a mask.
fn prefix(family: Family, bytes: &[u8], mask: Option<&[u8]>) -> Option<IpNet> {
    let length = match mask {
        None => bytes.len() * 8,
        Some(mask) => mask.iter().map(|byte| byte.leading_ones() as usize).sum(),
    };
    let mut octets = [0; 16];
    octets.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(*octets.first_chunk::<4>()?)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(octets)),
    };
    IpNet::new(address, u8::try_from(length).ok()?).ok()
}

fn translation(family: Family, address: Option<Operand>, port: Option<Operand>) -> Action {
    match (address, port) {
        (Some(Operand::MapValue { map, key }), _) => match key.as_slice() {
            [Operand::Number { modulus, .. }] => Action::RandomBackend(map, *modulus),
            _ => Action::Unknown(format!("dnat to map @{map}")),
        },
        (Some(Operand::Bytes(address)), Some(Operand::Bytes(port))) => {
            match backend(family, &address, &port) {
                Some(backend) => Action::Translate(backend),
                None => Action::Unknown("dnat".to_owned()),
            }
        }
        _ => Action::Unknown("dnat".to_owned()),
    }
}

/// Reads an address and a port in network order.
pub(super) fn backend(family: Family, address: &[u8], port: &[u8]) -> Option<Backend> {
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(*address.first_chunk::<4>()?)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(*address.first_chunk::<16>()?)),
    };
    Some(Backend { address, port: u16::from_be_bytes(*port.first_chunk::<2>()?) })
}
