//! The elements of a frontend in the kernel's sets and maps.

use std::net::IpAddr;

use super::{ChainName, Frontend, FrontendKey, Outcome, Pools, Set, SourceRange};
use crate::model::{Backend, Family};

/// The key of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A frontend, in a set or map of frontends.
    Frontend(FrontendKey),
    /// One slot in the pool of a frontend.
    Pool(FrontendKey, u32),
    /// A range of sources that may use a frontend.
    Source(FrontendKey, SourceRange),
    /// An address, in a plain set.
    Address(IpAddr),
    /// An address as both source and destination.
    Hairpin(IpAddr),
}

impl Key {
    /// Returns the family whose table holds the element.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Key::Frontend(frontend) | Key::Pool(frontend, _) | Key::Source(frontend, _) => {
                frontend.family()
            }
            Key::Address(address) | Key::Hairpin(address) => Family::of(*address),
        }
    }
}

/// A member of one of the plain sets: an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetMember {
    /// The plain set: addresses without a value or comment.
    pub set: Set,
    /// The member address; in `hairpin`, both source and destination.
    pub address: IpAddr,
}

impl SetMember {
    /// Returns the family whose table holds the element.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Returns the member as an element, without value and comment.
    #[must_use]
    pub fn element(&self) -> Element<'static> {
        let key = match self.set {
            Set::Hairpin => Key::Hairpin(self.address),
            _ => Key::Address(self.address),
        };
        Element { set: self.set, key, value: None, comment: None }
    }
}

/// The value of a map element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// The verdict `goto`, with its chain.
    Goto(ChainName),
    /// The verdict `drop`.
    Drop,
    /// The address and port of a backend.
    Backend(Backend),
}

/// An element of one of shunt's sets or maps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element<'a> {
    /// The set or map that holds the element.
    pub set: Set,
    /// The key, unique in the set or map.
    pub key: Key,
    /// The value in a map; `None` in a set.
    pub value: Option<Value>,
    /// The comment: the label of the frontend's service port, if any.
    pub comment: Option<&'a str>,
}

impl Frontend {
    /// Returns the element with the verdict for new connections to this frontend.
    #[must_use]
    pub fn verdict(&self, key: FrontendKey) -> Element<'_> {
        let pools = Frontend::pools_of(key).0;
        match &self.outcome {
            Outcome::Balance(pool) => self.balanced(key, pools, pool.len()),
            Outcome::Reject => {
                self.element(pools.verdicts(), key, Some(Value::Goto(ChainName::Reject)))
            }
            Outcome::Drop => self.element(pools.verdicts(), key, Some(Value::Drop)),
        }
    }

    /// Returns all elements of the frontend except the slots of its pools.
    pub fn decisions(&self, key: FrontendKey) -> impl Iterator<Item = Element<'_>> {
        let masquerade = match key {
            FrontendKey::Address(..) => Set::MasqueradeServices,
            FrontendKey::NodePort(..) => Set::MasqueradeNodeports,
        };
        let masquerade = self.masquerade.then(|| self.element(masquerade, key, None));
        let pools = Frontend::pools_of(key).1;
        let short_circuit = (!self.short_circuit.is_empty())
            .then(|| self.balanced(key, pools, self.short_circuit.len()));
        let restricted =
            self.sources.iter().map(move |_| self.element(Set::RestrictedVips, key, None));
        let affinity = match key {
            FrontendKey::Address(..) => Set::AffinityServices,
            FrontendKey::NodePort(..) => Set::AffinityNodeports,
        };
        let affinity = self.affinity.map(|seconds| {
            self.element(affinity, key, Some(Value::Goto(ChainName::AffinityTimeout(seconds))))
        });
        let sources = self.sources.iter().flat_map(|ranges| ranges.iter());
        let sources = sources.map(move |range| Element {
            set: Set::AllowedSources,
            key: Key::Source(key, *range),
            value: None,
            comment: None,
        });
        std::iter::once(self.verdict(key))
            .chain(masquerade)
            .chain(short_circuit)
            .chain(affinity)
            .chain(restricted)
            .chain(sources)
    }

    /// Returns all elements of the frontend.
    pub fn elements(&self, key: FrontendKey) -> impl Iterator<Item = Element<'_>> {
        let slots = self.pools(key).flat_map(move |(pools, backends)| {
            let indexed = backends.iter().zip(0..);
            indexed.map(move |(backend, index)| pools.slot(key, index, *backend))
        });
        self.decisions(key).chain(slots)
    }

    /// Returns the on-demand chains that the frontend's elements need, directly or through another
    /// chain.
    pub fn chains(&self, key: FrontendKey) -> impl Iterator<Item = ChainName> {
        let balancers = self.pools(key).flat_map(|(pools, pool)| {
            let count = pool.len() as u32;
            let balancing = self.balancing;
            let balancer =
                move |affinity| ChainName::Balancer { pools, balancing, affinity, count };
            [Some(balancer(false)), self.affinity.map(|_| balancer(true))].into_iter().flatten()
        });
        let affinity = self.affinity.into_iter().flat_map(|seconds| {
            [
                ChainName::AffinityTimeout(seconds),
                ChainName::AffinityPostrouting,
                ChainName::AffinityInput,
            ]
        });
        balancers.chain(affinity).filter(|chain| chain.is_on_demand())
    }

    fn balanced(&self, key: FrontendKey, pools: Pools, count: usize) -> Element<'_> {
        let affinity = self.affinity.is_some();
        let (balancing, count) = (self.balancing, count as u32);
        let balancer = ChainName::Balancer { pools, balancing, affinity, count };
        self.element(pools.verdicts(), key, Some(Value::Goto(balancer)))
    }

    fn element(&self, set: Set, key: FrontendKey, value: Option<Value>) -> Element<'_> {
        Element { set, key: Key::Frontend(key), value, comment: Some(&self.label) }
    }
}

impl Pools {
    /// Returns the element of one slot in a pool. It has no comment: there are many slots, and the
    /// frontend's other elements have the comment.
    #[must_use]
    pub fn slot(self, key: FrontendKey, index: u32, backend: Backend) -> Element<'static> {
        Element {
            set: self.endpoints(),
            key: Key::Pool(key, index),
            value: Some(Value::Backend(backend)),
            comment: None,
        }
    }
}
