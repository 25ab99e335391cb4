//! Follows the first packet of a connection through shunt's rules.
//!
//! The rules are the values that the agent writes to the kernel, so an explanation and the kernel
//! cannot disagree about them. [`Tables`] answers the lookups: from the plan, or from the kernel.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::model::{Backend, Balancing, Family, Protocol};
use crate::plan::{
    ChainName, Field, FrontendKey, Is, Key, Pools, Rule, Set, SourceRange, Statement, Value,
    hash_index,
};

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The number of the transport protocol, which need not be one of a service port.
    pub protocol: u8,
    /// The destination port.
    pub port: u16,
    /// The interface on which it arrives; `None` if the node sends it, or if that is unknown.
    pub interface: Option<Arc<str>>,
    /// True if the node itself sends it.
    pub from_node: bool,
}

impl Packet {
    /// Returns the key of a frontend at the destination address, if service ports can have the
    /// protocol.
    #[must_use]
    pub fn address_key(&self) -> Option<FrontendKey> {
        let protocol = Protocol::from_number(self.protocol)?;
        Some(FrontendKey::Address(self.destination, protocol, self.port))
    }

    /// Returns the key of a node port at the destination port.
    #[must_use]
    pub fn node_port_key(&self) -> Option<FrontendKey> {
        let protocol = Protocol::from_number(self.protocol)?;
        Some(FrontendKey::NodePort(self.family(), protocol, self.port))
    }

    /// Returns the family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.destination)
    }
}

/// An element that a lookup has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// A member of a set.
    Member,
    /// The value of a map element.
    Value(Value),
    /// An element that shunt did not write.
    Foreign,
}

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A rule of shunt.
    Rule(Rule),
    /// A rule that shunt did not write.
    Foreign,
}

/// The sets, maps and chains of one family, and the addresses of the node.
pub trait Tables {
    /// Why an answer failed.
    type Error;

    /// Returns the rules of a chain; `None` if there is no such chain.
    ///
    /// # Errors
    /// If the chain cannot be read.
    fn rules(&mut self, chain: ChainName) -> Result<Option<Vec<Line>>, Self::Error>;

    /// Looks keys up in a set or map. A range of sources is a single one.
    ///
    /// # Errors
    /// If the set cannot be read.
    fn find(&mut self, set: Set, keys: &[Key]) -> Result<Vec<Option<Match>>, Self::Error>;

    /// Returns the last backend of a client of a frontend with session affinity.
    ///
    /// # Errors
    /// If the map cannot be read.
    fn last_backend(
        &mut self,
        client: IpAddr,
        key: FrontendKey,
    ) -> Result<Option<Backend>, Self::Error>;

    /// Returns true if the address is one of the node's own, loopback included.
    ///
    /// # Errors
    /// If the addresses cannot be read.
    fn is_local(&mut self, address: IpAddr) -> Result<bool, Self::Error>;
}

/// The way of a packet through the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// The end of the way.
    pub end: End,
    /// Why the kernel masquerades the connection, if a rule has marked it for that.
    pub marked: Option<Masquerade>,
    /// True if the result depends on the interface of arrival, which is not known. It is assumed to be
    /// another one than the pods'.
    pub assumes_interface: bool,
}

impl Walk {
    /// Returns the backends that the connection may get; none if it is not translated.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        match &self.end {
            End::Translated { choices, .. } => choices,
            _ => &[],
        }
    }

    /// Returns true if both lead to the same outcome with the same probabilities. A client's last
    /// backend is as good as a random choice that contains it. The kernel may masquerade a pod that
    /// reaches itself because another Service, which the plan of this one lacks, has the pod.
    #[must_use]
    pub fn agrees_with(&self, planned: &Walk) -> bool {
        use End::{Dropped, Rejected, Translated, Untouched};
        match (&self.end, &planned.end) {
            (Translated { choices, pools, lost, .. }, Translated { choices: wanted, .. }) => {
                let is_planned = |choice: &Choice| {
                    wanted.iter().any(|it| {
                        it.backend == choice.backend
                            && (choice.masquerade == Some(Masquerade::Hairpin)
                                || choice.masquerade == it.masquerade)
                    })
                };
                let same_number = pools.is_none() || choices.len() == wanted.len();
                *lost == 0.0 && same_number && choices.iter().all(is_planned)
            }
            (Rejected(_), Rejected(_)) | (Dropped(_), Dropped(_)) | (Untouched, Untouched) => true,
            _ => false,
        }
    }
}

/// The end of a packet's way through the chains before routing.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// No rule concerns the packet. It goes on to its destination.
    Untouched,
    /// The kernel translates the destination to one of these backends.
    Translated {
        /// The backends with their probabilities.
        choices: Vec<Choice>,
        /// The pools that hold the backends; `None` for the last backend of a client with session
        /// affinity.
        pools: Option<Pools>,
        /// The frontend.
        frontend: FrontendKey,
        /// The probability that no slot answers, so that the packet is not translated: the tables
        /// are damaged then.
        lost: f64,
    },
    /// A rule of this chain rejects the packet.
    Rejected(ChainName),
    /// A rule of this chain drops the packet.
    Dropped(ChainName),
    /// The packet meets a rule that shunt did not write.
    Foreign(ChainName),
    /// The base chain does not exist.
    NoTable,
}

/// A backend that a connection may get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The backend.
    pub backend: Backend,
    /// The probability, from 0 to 1.
    pub probability: f64,
    /// Why the kernel masquerades the connection behind routing; `None` if it does not.
    pub masquerade: Option<Masquerade>,
}

impl Choice {
    /// Returns a choice that is not masqueraded.
    #[must_use]
    pub fn of(backend: Backend, probability: f64) -> Choice {
        Choice { backend, probability, masquerade: None }
    }
}

/// Why the kernel masquerades a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// `externalTrafficPolicy: Cluster`.
    ExternalClusterPolicy,
    /// The client is no local pod, and the destination is a ClusterIP.
    NotLocal,
    /// `nftables.masqueradeAll`.
    All,
    /// The pod reaches itself.
    Hairpin,
    /// The node itself reaches a frontend with policy Local.
    NodeToLocalPolicy,
}

impl Masquerade {
    /// Returns the name in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Masquerade::ExternalClusterPolicy => "external-cluster-policy",
            Masquerade::NotLocal => "not-local",
            Masquerade::All => "masquerade-all",
            Masquerade::Hairpin => "hairpin",
            Masquerade::NodeToLocalPolicy => "node-to-local-policy",
        }
    }
}

/// How deep chains may call each other (`NFT_JUMP_STACK_SIZE` of `net/netfilter/nf_tables.h`).
const MAX_DEPTH: usize = 16;

/// Follows a packet through the chains before routing, and behind it for each backend. If other
/// transactions change the kernel's tables meanwhile, the way may differ from the plan; the caller
/// looks again then.
///
/// # Errors
/// The error of `tables`.
pub fn walk<T: Tables>(packet: &Packet, tables: &mut T) -> Result<Walk, T::Error> {
    let base = match packet.from_node {
        true => ChainName::NatOutput,
        false => ChainName::NatPrerouting,
    };
    let mut walker = Walker::new(packet, tables);
    let flow = walker.chain(base, 0)?;
    let Walker { choices, lost, pools, frontend, marked, assumes_interface, .. } = walker;
    let mut end = match (frontend, flow) {
        (Some(frontend), _) if !choices.is_empty() => {
            End::Translated { choices, pools, frontend, lost }
        }
        (_, ChainEnd::End(end)) => end,
        (_, ChainEnd::Continue) => End::Untouched,
        (_, ChainEnd::NoChain) => End::NoTable,
    };
    if let End::Translated { choices, .. } = &mut end {
        for choice in choices {
            choice.masquerade = masquerade(packet, choice.backend, marked, tables)?;
        }
    }
    Ok(Walk { end, marked, assumes_interface })
}

fn masquerade<T: Tables>(
    packet: &Packet,
    backend: Backend,
    marked: Option<Masquerade>,
    tables: &mut T,
) -> Result<Option<Masquerade>, T::Error> {
    // What arrives for the node itself is never routed on.
    if !packet.from_node && tables.is_local(backend.address)? {
        return Ok(None);
    }
    let packet = &Packet { destination: backend.address, port: backend.port, ..packet.clone() };
    let mut walker = Walker { translated: true, marked, ..Walker::new(packet, tables) };
    walker.chain(ChainName::NatPostrouting, 0)?;
    Ok(walker.marked.filter(|_| walker.masquerades))
}

struct Walker<'a, T> {
    packet: &'a Packet,
    tables: &'a mut T,
    translated: bool,
    masquerades: bool,
    marked: Option<Masquerade>,
    assumes_interface: bool,
    /// The backends that balancers found so far, of this frontend and these pools.
    choices: Vec<Choice>,
    frontend: Option<FrontendKey>,
    pools: Option<Pools>,
    /// The probability of none of them.
    lost: f64,
}

enum ChainEnd {
    /// The way ends.
    End(End),
    /// The chain ends, and the caller continues.
    Continue,
    /// There is no such chain.
    NoChain,
}

/// The result of a statement.
enum Step {
    /// The next statement follows.
    Next,
    /// The next rule follows: the statement does not match.
    NextRule,
    /// The rest of the chain is skipped.
    Leave(ChainEnd),
}

/// Returns true for a match of the packet's origin.
fn is_about_source(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Source(..) | Statement::Interface(..) | Statement::InterfacePrefix(..)
    )
}

impl<'a, T: Tables> Walker<'a, T> {
    fn new(packet: &'a Packet, tables: &'a mut T) -> Walker<'a, T> {
        Walker {
            packet,
            tables,
            translated: false,
            masquerades: false,
            marked: None,
            assumes_interface: false,
            choices: Vec::new(),
            frontend: None,
            pools: None,
            lost: 1.0,
        }
    }

    fn chain(&mut self, name: ChainName, depth: usize) -> Result<ChainEnd, T::Error> {
        if depth > MAX_DEPTH {
            return Ok(ChainEnd::End(End::Foreign(name)));
        }
        let Some(rules) = self.tables.rules(name)? else { return Ok(ChainEnd::NoChain) };
        for line in &rules {
            let Line::Rule(rule) = line else {
                return Ok(ChainEnd::End(End::Foreign(name)));
            };
            for statement in &rule.statements {
                match self.statement(statement, rule, name, depth)? {
                    Step::Next => {}
                    Step::NextRule => break,
                    Step::Leave(flow) => return Ok(flow),
                }
            }
        }
        Ok(ChainEnd::Continue)
    }

    fn statement(
        &mut self,
        statement: &Statement,
        rule: &Rule,
        chain: ChainName,
        depth: usize,
    ) -> Result<Step, T::Error> {
        let holds = |is: &Is, condition: bool| match condition == (*is == Is::So) {
            true => Step::Next,
            false => Step::NextRule,
        };
        let Packet { source, destination, .. } = *self.packet;
        Ok(match statement {
            Statement::Source(net, is) => holds(is, net.contains(&source)),
            Statement::Destination(net, is) => holds(is, net.contains(&destination)),
            Statement::Interface(name, is) => {
                let condition = self.arrives_on(|interface| interface == name.as_str());
                holds(is, condition)
            }
            Statement::InterfacePrefix(prefix, is) => {
                let condition = self.arrives_on(|interface| interface.starts_with(prefix.as_str()));
                holds(is, condition)
            }
            Statement::SourceIsLocal => holds(&Is::So, self.tables.is_local(source)?),
            Statement::DestinationIsLocal(is) => holds(is, self.tables.is_local(destination)?),
            Statement::Translated => holds(&Is::So, self.translated),
            Statement::Protocol(protocol) => {
                holds(&Is::So, protocol.number() == self.packet.protocol)
            }
            Statement::InSet(set, is) => {
                let found = self.look_up(*set)?.is_some();
                if *set == Set::Hairpin && found {
                    self.marked = Some(Masquerade::Hairpin);
                }
                holds(is, found)
            }
            Statement::Dispatch(set) => match self.look_up(*set)? {
                Some(Match::Value(Value::Goto(target))) => Step::Leave(self.go(target, depth)?),
                Some(Match::Value(Value::Drop)) => Step::Leave(ChainEnd::End(End::Dropped(chain))),
                Some(_) => Step::Leave(ChainEnd::End(End::Foreign(chain))),
                None => Step::NextRule,
            },
            Statement::Balance(pools, balancing, count) => {
                self.balance(*pools, *balancing, *count)?
            }
            Statement::AffinityLookup => self.last_backend()?,
            // Another program may have set the bit before; that is not known here.
            Statement::HasMark(_) => holds(&Is::So, self.marked.is_some()),
            Statement::SetMark(_) => {
                self.marked = Some(match chain {
                    ChainName::MarkNode => Masquerade::NodeToLocalPolicy,
                    ChainName::External | ChainName::Nodeports => Masquerade::ExternalClusterPolicy,
                    _ if rule.statements.iter().any(is_about_source) => Masquerade::NotLocal,
                    _ => Masquerade::All,
                });
                Step::Next
            }
            Statement::ClearMark(_) => Step::Next,
            Statement::Jump(target) => match self.chain(*target, depth + 1)? {
                ChainEnd::End(end) => Step::Leave(ChainEnd::End(end)),
                ChainEnd::Continue | ChainEnd::NoChain => Step::Next,
            },
            Statement::Goto(target) => Step::Leave(self.go(*target, depth)?),
            // The chains of affinity only store; they are not walked.
            Statement::AffinityUpdate(_) | Statement::DispatchUntranslated(_) => Step::NextRule,
            // A new connection goes to no gone endpoint, and its first packet is no answer.
            Statement::ToGoneEndpoint | Statement::Reset | Statement::LateAnswer => Step::NextRule,
            // The timeouts change nothing for the first packet.
            Statement::SetTimeouts(_) => Step::Next,
            Statement::Masquerade => {
                self.masquerades = true;
                Step::Leave(ChainEnd::Continue)
            }
            Statement::Reject => Step::Leave(ChainEnd::End(End::Rejected(chain))),
            Statement::Drop => Step::Leave(ChainEnd::End(End::Dropped(chain))),
            Statement::Return => Step::Leave(ChainEnd::Continue),
        })
    }
}

impl<T: Tables> Walker<'_, T> {
    fn go(&mut self, target: ChainName, depth: usize) -> Result<ChainEnd, T::Error> {
        // The kernel refuses a verdict without its chain; a listing between two changes may lack it.
        Ok(match self.chain(target, depth + 1)? {
            ChainEnd::NoChain => ChainEnd::Continue,
            flow => flow,
        })
    }

    fn arrives_on(&mut self, matches: impl Fn(&str) -> bool) -> bool {
        match &self.packet.interface {
            Some(name) => matches(name),
            None if self.packet.from_node => matches(""),
            None => {
                self.assumes_interface = true;
                false
            }
        }
    }

    /// Returns the key of the packet in a set without slots.
    fn key(&self, set: Set) -> Option<Key> {
        let packet = self.packet;
        Some(match set.key() {
            [Field::Destination] => Key::Address(packet.destination),
            [Field::Destination, Field::Protocol, Field::Port] => {
                Key::Frontend(packet.address_key()?)
            }
            [Field::Protocol, Field::Port] => Key::Frontend(packet.node_port_key()?),
            [Field::Destination, Field::Protocol, Field::Port, Field::Source] => {
                let (first, last) = (packet.source, packet.source);
                Key::Source(packet.address_key()?, SourceRange { first, last })
            }
            [Field::Source, Field::Destination] if packet.source == packet.destination => {
                Key::Hairpin(packet.source)
            }
            _ => return None,
        })
    }

    fn look_up(&mut self, set: Set) -> Result<Option<Match>, T::Error> {
        let Some(key) = self.key(set) else { return Ok(None) };
        Ok(self.tables.find(set, &[key])?.pop().flatten())
    }

    fn last_backend(&mut self) -> Result<Step, T::Error> {
        let Some(frontend) = self.packet.address_key() else { return Ok(Step::NextRule) };
        let found = self.tables.last_backend(self.packet.source, frontend)?;
        let Some(backend) = found else { return Ok(Step::NextRule) };
        self.choices = vec![Choice::of(backend, 1.0)];
        (self.frontend, self.lost) = (Some(frontend), 0.0);
        Ok(Step::Leave(ChainEnd::End(End::Untouched)))
    }

    fn balance(
        &mut self,
        pools: Pools,
        balancing: Balancing,
        count: u32,
    ) -> Result<Step, T::Error> {
        let frontend = match pools {
            Pools::Services | Pools::ShortCircuit => self.packet.address_key(),
            Pools::Nodeports | Pools::ShortCircuitNodeports => self.packet.node_port_key(),
        };
        let Some(frontend) = frontend else { return Ok(Step::NextRule) };
        let indexes = match balancing {
            // The source port is unknown.
            Balancing::Random | Balancing::SourceAndPortHash => 0..count,
            Balancing::SourceHash => {
                let index = hash_index(self.packet.source, count);
                index..index + 1
            }
        };
        let count = u32::try_from(indexes.len()).unwrap_or(count);
        let keys: Vec<Key> = indexes.map(|index| Key::Pool(frontend, index)).collect();
        let found = self.tables.find(pools.endpoints(), &keys)?;
        // The second rule of a balancer takes what the first one has missed.
        let each = self.lost / f64::from(count.max(1));
        let mut missed = 0_u32;
        for slot in found {
            match slot {
                Some(Match::Value(Value::Backend(backend))) => {
                    add(&mut self.choices, backend, each);
                }
                _ => missed += 1,
            }
        }
        (self.frontend, self.pools) = (Some(frontend), Some(pools));
        self.lost = each * f64::from(missed);
        Ok(match missed {
            0 => Step::Leave(ChainEnd::End(End::Untouched)),
            _ => Step::NextRule,
        })
    }
}

/// Adds to the probability of a backend.
fn add(choices: &mut Vec<Choice>, backend: Backend, probability: f64) {
    match choices.iter_mut().find(|choice| choice.backend == backend) {
        Some(choice) => choice.probability += probability,
        None => choices.push(Choice::of(backend, probability)),
    }
}
