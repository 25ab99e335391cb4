//! Logs: to stderr, as text for people or JSON for collectors.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::fmt;

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
    // kube-proxy's levels: 2 is usual in clusters, 4 is for debugging, 6 and more for tracing.
    let level = match verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let builder = fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // Only a second subscriber is refused, and the first one does.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
