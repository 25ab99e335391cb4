//! Logs: to stderr, as text for people or JSON for collectors.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::args::Logging;
use crate::config::LogFormat;

/// kube-proxy's usual verbosity.
const USUAL: u8 = 2;

/// Starts logging as the flags say, for commands without a configuration.
pub(super) fn start_with(logging: &Logging) {
    start(logging.logging_format.unwrap_or_default(), logging.verbosity.unwrap_or(USUAL));
}

/// Starts logging. Calling it twice does nothing the second time.
pub(super) fn start(format: LogFormat, verbosity: u8) {
    // kube-proxy's levels: 2 is usual in clusters, 4 is for debugging, 6 and more for tracing. What
    // HTTP and TLS have to say is so much that ours would drown in it; there, too, 8 is the level for
    // requests.
    let (ours, others) = match verbosity {
        0..=3 => (Level::INFO, Level::WARN),
        4..=5 => (Level::DEBUG, Level::WARN),
        6..=7 => (Level::TRACE, Level::WARN),
        8..=9 => (Level::TRACE, Level::DEBUG),
        _ => (Level::TRACE, Level::TRACE),
    };
    let levels = Targets::new().with_target("shunt", ours).with_default(others);
    let builder = fmt().with_writer(std::io::stderr).with_max_level(ours).with_target(false);
    // Only a second subscriber is refused, and the first one does.
    let _ = match format {
        LogFormat::Text => {
            let builder = builder.with_ansi(std::io::stderr().is_terminal());
            builder.finish().with(levels).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).finish().with(levels).try_init(),
    };
}
