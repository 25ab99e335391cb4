//! The plan of the kernel's rules for the Services of a cluster.
//!
//! Owns: the objects as far as planning needs them ([`model`]), and the resulting plan of tables,
//! chains, rules and elements ([`plan`]).
//!
//! Must not know: the sources of objects, the commit of the plan, the time, or I/O of any kind.
//! Everything in here can be tested without root. Its dependencies, and the names that its
//! `clippy.toml` rejects, ensure that.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod explain;
pub mod jitter;
pub mod model;
pub mod plan;
