//! What the agent tells others over HTTP.
//!
//! Owns: the health server. Must not know: Services, nf_tables; it is shown a [`Health`] value.

mod health;

pub use health::{Health, serve_health};
