//! What the agent tells others over HTTP.
//!
//! Owns: the health server and the listeners of `healthCheckNodePort`. Must not know: Services, nf_tables; it is shown a [`Health`] value.

mod health;
mod http;
mod service_health;

pub use health::{Health, serve_health};
pub use service_health::{ServiceHealth, ServiceHealths, serve_service_health};
