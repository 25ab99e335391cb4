//! Logs: to stderr, as text for people or JSON for collectors.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::fmt;

use super::args::{LogFormat, Logging};

/// Starts logging as the flags say. Calling it twice does nothing the second time.
pub(super) fn start(logging: &Logging) {
    // kube-proxy's levels: 2 is usual in clusters, 4 is for debugging, 6 and more for tracing.
    let level = match logging.verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let builder = fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // Only a second subscriber is refused, and the first one does.
    let _ = match logging.logging_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
