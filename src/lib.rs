//! shunt: a Service dataplane for Kubernetes nodes.
//!
//! Data flows one way: [`source`] → [`model`](shunt_core::model) →
//! [`plan`](shunt_core::plan) → [`dataplane`] → [`nft`](nfnetlink::nft). The map of the
//! code, with its invariants, is `ARCHITECTURE.md` at the root of the repository.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod agent;
pub mod commands;
pub mod config;
pub mod dataplane;
pub mod flows;
pub mod serve;
pub mod source;
pub mod taken_ports;
