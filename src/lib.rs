//! shunt: a netlink-native Service dataplane for Kubernetes nodes.
//!
//! Data flows one way: [`source`] → [`model`] → [`plan`] → [`dataplane`] → [`nft`]. The map of the
//! code, with its invariants, is `ARCHITECTURE.md` at the root of the repository.

pub mod config;
pub mod cli;
pub mod serve;
pub mod dataplane;
pub mod document;
pub mod model;
mod netlink;
pub mod nft;
pub mod plan;
pub mod source;
