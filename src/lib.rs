//! shunt: a netlink-native Service dataplane for Kubernetes nodes.
//!
//! Data flows one way: [`source`] → [`model`](shunt_core::model) →
//! [`plan`](shunt_core::plan) → [`dataplane`] → [`nft`](nfnetlink::nft). The map of the
//! code, with its invariants, is `ARCHITECTURE.md` at the root of the repository.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod check;
pub mod cli;
pub mod config;
pub mod conntrack;
pub mod dataplane;
pub mod directory;
pub mod escape;
pub mod events;
pub mod explain;
pub mod file_watch;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod http;
mod jitter;
pub mod kube_proxy;
pub mod loopback;
pub mod metrics;
pub mod presence;
pub mod query;
pub mod service_counters;
pub mod services;
pub mod socket_owners;
pub mod source;
pub mod spanned_yaml;
pub mod status;
pub mod taken_ports;
pub mod trace;
pub mod version;
