//! What the flags and the configuration file together ask for.

use std::net::SocketAddr;
use std::time::Duration;

use super::Failure;
use super::args::Settings;
use crate::plan::Options;

/// What the agent needs to know.
#[derive(Debug, Clone)]
pub(super) struct Effective {
    pub(super) options: Options,
    pub(super) node_name: String,
    pub(super) healthz: Option<SocketAddr>,
    pub(super) min_sync_period: Duration,
    pub(super) sync_period: Duration,
}

pub(super) fn effective(settings: &Settings) -> Result<Effective, Failure> {
    let node_name = settings.hostname_override.clone().unwrap_or_default().trim().to_lowercase();
    Ok(Effective {
        options: Options::default(),
        node_name,
        healthz: Some(([0, 0, 0, 0], 10256).into()),
        min_sync_period: Duration::ZERO,
        sync_period: Duration::from_secs(30),
    })
}
