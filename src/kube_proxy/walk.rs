//! The way of a new connection through the chains of a service port.

use std::collections::{BTreeMap, BTreeSet};

use nfnetlink::nft::Verdict;
use shunt_core::model::{Backend, Family};

use super::forwarding::Outcome;
use super::rules::{Action, Condition, MapValue, Rule, Table, backend};

/// The longest sequence of jumps that is followed. The kernel allows 16.
const MAX_DEPTH: usize = 16;
/// A probability below this one is an effect of rounding.
const NEGLIGIBLE: f64 = 1e-6;

/// A client, as far as rules distinguish clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Neither the node nor a pod of it.
    Outside,
    /// The node itself.
    Node,
}

/// The sum of all ways.
#[derive(Debug, Default)]
pub(super) struct Walk {
    backends: BTreeMap<Backend, f64>,
    rejected: f64,
    dropped: f64,
    /// The rules set the mark for all clients.
    pub(super) marked: bool,
    pub(super) affinity: Option<u32>,
    pub(super) unknown: BTreeSet<String>,
}

impl Walk {
    /// Follows the chain of a table for a new connection.
    pub(super) fn new(table: &Table, family: Family, chain: &str, client: Client) -> Walk {
        let mut walk = Walk::default();
        let at = At { table, family, client };
        walk.chain(&at, chain, 1.0, false, 0);
        walk
    }

    /// Returns the outcome.
    pub(super) fn outcome(&self) -> Outcome {
        if !self.backends.is_empty() {
            Outcome::Balance(self.backends.clone())
        } else if self.rejected > NEGLIGIBLE {
            Outcome::Reject
        } else if self.dropped > NEGLIGIBLE {
            Outcome::Drop
        } else {
            Outcome::Untranslated
        }
    }

    /// Follows a chain for this part of the connections, and returns the part that reaches its end.
    /// `sourced` is true if only some clients get here.
    fn chain(&mut self, at: &At<'_>, chain: &str, part: f64, sourced: bool, depth: usize) -> f64 {
        let mut part = part;
        if depth > MAX_DEPTH {
            self.unknown.insert(format!("jumps in a circle at {chain}"));
            return 0.0;
        }
        for rule in at.table.rules(chain) {
            let Some(share) = self.share(at, rule) else { continue };
            let sourced = sourced || rule.conditions.iter().any(Condition::is_about_source);
            let taken = part * share;
            part -= match &rule.action {
                Action::None => 0.0,
                Action::SetMark => {
                    self.marked |= !sourced && share >= 1.0 - NEGLIGIBLE;
                    0.0
                }
                Action::Unknown(what) => {
                    self.unknown.insert(what.clone());
                    0.0
                }
                Action::Reject => {
                    self.rejected += taken;
                    taken
                }
                Action::Translate(backend) => {
                    *self.backends.entry(*backend).or_default() += taken;
                    taken
                }
                Action::RandomBackend(map, modulus) => self.balance(at, map, *modulus, taken),
                Action::RandomVerdict(map, modulus) => {
                    let values = at.table.maps.get(map).map_or(&[][..], Vec::as_slice);
                    let each = taken / f64::from((*modulus).max(1));
                    let mut gone = 0.0;
                    for value in values {
                        if let MapValue::Verdict(verdict) = value {
                            gone += self.verdict(at, verdict, each, sourced, depth).0;
                        }
                    }
                    gone
                }
                Action::Verdict(verdict) => {
                    let (gone, ends) = self.verdict(at, verdict, taken, sourced, depth);
                    if ends && share >= 1.0 - NEGLIGIBLE {
                        return part - gone;
                    }
                    gone
                }
            };
            if part < NEGLIGIBLE {
                return 0.0;
            }
        }
        part
    }

    /// Follows a verdict for this part of the connections. Returns the part that does not come back,
    /// and true if the evaluation of the chain ends for the rest, too.
    fn verdict(
        &mut self,
        at: &At<'_>,
        verdict: &Verdict,
        part: f64,
        sourced: bool,
        depth: usize,
    ) -> (f64, bool) {
        match verdict {
            Verdict::Drop => {
                self.dropped += part;
                (part, true)
            }
            Verdict::Jump(chain) => (part - self.chain(at, chain, part, sourced, depth + 1), false),
            Verdict::Goto(chain) => (part - self.chain(at, chain, part, sourced, depth + 1), true),
            Verdict::Return | Verdict::Accept => (0.0, true),
            Verdict::Other(code) => {
                self.unknown.insert(format!("verdict {code}"));
                (0.0, true)
            }
        }
    }

    /// Distributes this part over the backends of a map. Returns the part that finds one.
    fn balance(&mut self, at: &At<'_>, map: &str, modulus: u32, part: f64) -> f64 {
        let values = at.table.maps.get(map).map_or(&[][..], Vec::as_slice);
        let each = part / f64::from(modulus.max(1));
        let address = if at.family == Family::V4 { 4 } else { 16 };
        let mut gone = 0.0;
        for value in values {
            let MapValue::Bytes(bytes) = value else { continue };
            match bytes.get(address..).and_then(|port| backend(at.family, bytes, port)) {
                Some(backend) => {
                    *self.backends.entry(backend).or_default() += each;
                    gone += each;
                }
                None => drop(self.unknown.insert(format!("a value of the map {map}"))),
            }
        }
        gone
    }

    /// Returns the part of the connections for which the conditions hold; `None` for no connection.
    fn share(&mut self, at: &At<'_>, rule: &Rule) -> Option<f64> {
        let mut share = 1.0;
        for condition in &rule.conditions {
            let holds = match condition {
                // The walk begins behind the match on the frontend.
                Condition::Protocol(_)
                | Condition::Port(_)
                | Condition::Destination(..)
                | Condition::DestinationSet(_)
                | Condition::DestinationIsLocal => true,
                // No client of which the node knows that it is a pod.
                Condition::Source(_, is)
                | Condition::SourceSet(_, is)
                | Condition::Interface(_, is) => !is,
                Condition::SourceIsLocal => at.client == Client::Node,
                Condition::Probability(probability) => {
                    share *= probability;
                    true
                }
                Condition::Affinity(seconds) => {
                    self.affinity = Some(*seconds);
                    false
                }
                Condition::AffinitySet(set) => {
                    self.affinity = at.table.timeouts.get(set).copied();
                    false
                }
                Condition::Unknown(what) => {
                    self.unknown.insert(what.clone());
                    false
                }
            };
            if !holds {
                return None;
            }
        }
        Some(share)
    }
}

/// The surroundings of a walk.
struct At<'a> {
    table: &'a Table,
    family: Family,
    client: Client,
}
