//! The HTTP servers of the agent.
//!
//! Owns: the health server, the metrics server, and the listeners of `healthCheckNodePort`.
//!
//! Must not know: Services, nf_tables. It reads [`Health`] values, [`Metrics`], and its addresses in
//! the configuration.
//!
//! [`Metrics`]: crate::serve::metrics::Metrics

mod connections;
mod health;
mod metrics;
mod protocol;
mod server;
mod service_health;

pub use connections::{Connections, Limits};
pub use health::{HEALTH_PURPOSE, Health, HealthSource, serve_health};
pub use metrics::serve_metrics;
pub use server::{OnUnbound, Servers};
pub use service_health::{ServiceHealth, ServiceHealths, serve_service_health};
