//! nf_tables without a kernel, for tests: a [`Namespace`] that judges and applies the very bytes
//! that would be sent to the kernel, [`Faulty`] kernels, and random clusters.
//!
//! The model knows what the agent uses, and of that what decides whether a transaction is taken and
//! what a listing says afterwards. It does not know what packets make of it: registers, hooks of
//! expressions, time. [`Namespace::beside`] holds it against the kernel, transaction by transaction.

mod cluster;
mod damage;
mod element;
mod faulty;
mod listing;
mod namespace;
mod objects;
mod random;
mod transaction;
mod twin;
mod uapi;

pub use cluster::{NODE, Objects, name, service, slice};
pub use damage::{Damage, Like, damage};
pub use faulty::{Call, Fault, Faulty};
pub use listing::{ListedElement, Listing};
pub use namespace::{Features, Ipv6, Namespace, Socket};
pub use random::{change, options};

/// How many times as long as usual a test should go on, with other random numbers each time:
/// `SHUNT_SOAK`. Without it a run is as long as CI can bear, and each is like the other.
#[must_use]
pub fn soak() -> Option<u32> {
    std::env::var("SHUNT_SOAK").ok()?.parse().ok()
}
