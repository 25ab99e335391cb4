//! The elements that a frontend is made of, in the kernel's sets and maps.

use std::net::IpAddr;

use super::{Frontend, FrontendKey, Outcome, Set};
use crate::model::{Backend, Family};
use crate::plan::ChainName;

/// The key of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A frontend.
    Frontend(FrontendKey),
    /// One place in the pool of a frontend.
    Pool(FrontendKey, u32),
    /// An address.
    Address(IpAddr),
    /// A source address that is also the destination.
    Hairpin(IpAddr),
}

impl Key {
    /// The family whose table it is in.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Key::Frontend(frontend) | Key::Pool(frontend, _) => frontend.family(),
            Key::Address(address) | Key::Hairpin(address) => Family::of(*address),
        }
    }
}

/// The right side of a map element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `goto` a chain.
    Goto(ChainName),
    /// `drop`.
    Drop,
    /// An address and a port.
    Backend(Backend),
}

/// One element of one of our sets or maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element<'a> {
    /// The set or map.
    pub set: Set,
    /// Its key.
    pub key: Key,
    /// Its value, in a map.
    pub value: Option<Value>,
    /// Its comment.
    pub comment: Option<&'a str>,
}

impl Frontend {
    /// The element that decides what happens to a connection to this frontend.
    #[must_use]
    pub fn verdict(&self, key: FrontendKey) -> Element<'_> {
        let node_port = matches!(key, FrontendKey::NodePort(..));
        let without = if node_port {
            Set::NoEndpointNodeports
        } else {
            Set::NoEndpointServices
        };
        let (set, value) = match (&self.outcome, node_port) {
            (Outcome::Balance(pool), false) => (
                Set::ServiceIps,
                Value::Goto(ChainName::Balancer(pool.len() as u32)),
            ),
            (Outcome::Balance(pool), true) => (
                Set::ServiceNodeports,
                Value::Goto(ChainName::NodeportBalancer(pool.len() as u32)),
            ),
            (Outcome::Reject, _) => (without, Value::Goto(ChainName::Reject)),
            (Outcome::Drop, _) => (without, Value::Drop),
        };
        Element {
            set,
            key: Key::Frontend(key),
            value: Some(value),
            comment: Some(&self.label),
        }
    }

    /// The element that has its traffic masqueraded, if it is.
    #[must_use]
    pub fn masquerading(&self, key: FrontendKey) -> Option<Element<'_>> {
        let set = match key {
            FrontendKey::Address(..) => Set::MasqueradeServices,
            FrontendKey::NodePort(..) => Set::MasqueradeNodeports,
        };
        self.masquerade.then_some(Element {
            set,
            key: Key::Frontend(key),
            value: None,
            comment: Some(&self.label),
        })
    }

    /// All elements of the frontend.
    pub fn elements(&self, key: FrontendKey) -> impl Iterator<Item = Element<'_>> {
        let pool = self
            .outcome
            .pool()
            .iter()
            .zip(0..)
            .map(move |(b, i)| pool_element(key, i, *b));
        std::iter::once(self.verdict(key))
            .chain(self.masquerading(key))
            .chain(pool)
    }
}

/// The element of one place in a pool. The frontend's own elements carry the comment.
#[must_use]
pub(crate) fn pool_element(key: FrontendKey, index: u32, backend: Backend) -> Element<'static> {
    let set = match key {
        FrontendKey::Address(..) => Set::Endpoints,
        FrontendKey::NodePort(..) => Set::NodeportEndpoints,
    };
    Element {
        set,
        key: Key::Pool(key, index),
        value: Some(Value::Backend(backend)),
        comment: None,
    }
}
