//! What the kernel should hold for the Services of a cluster.
//!
//! Owns: the objects as far as planning needs them ([`model`]), and the plan of tables, chains, rules and
//! elements that follows from them ([`plan`]).
//!
//! Must not know: where objects come from, how the plan gets into a kernel, the time, or I/O of any
//! kind. Everything in here can be tested without root. Its dependencies, and the names
//! that its `clippy.toml` refuses, keep it so.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod model;
pub mod plan;
