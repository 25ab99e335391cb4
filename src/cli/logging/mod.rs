//! Logs: to stderr, as text for people or JSON for collectors.

mod format;

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::args::Logging;
use crate::config::{self, LogFormat};

/// What the lines go through before they are written.
type Filtered = Layered<reload::Layer<Targets, Registry>, Registry>;
type Format = Box<dyn Layer<Filtered> + Send + Sync>;

struct Handles {
    levels: reload::Handle<Targets, Registry>,
    format: reload::Handle<Format, Filtered>,
}

/// There is one log per process.
static HANDLES: OnceLock<Handles> = OnceLock::new();

/// A person waits for what the command says.
static FOR_PEOPLE: AtomicBool = AtomicBool::new(false);

/// From now on, text is what a command tells a person, and no log: `error: …`.
pub(super) fn tell_people() {
    FOR_PEOPLE.store(true, Ordering::Relaxed);
}

/// Logs as the flags say, for commands without a configuration.
pub(super) fn start_with(logging: &Logging) {
    // Flags that are wrong are for others to report; they do not keep the rest from being logged.
    match config::load(None, &logging.flags) {
        Ok(loaded) => start(loaded.config.log_format, loaded.config.verbosity),
        Err(_) => start(LogFormat::default(), 0),
    }
}

/// Logs in this format and as much as this verbosity asks for, from now on.
pub(super) fn start(format: LogFormat, verbosity: u8) {
    if let Some(handles) = HANDLES.get() {
        // It fails only without a subscriber.
        let _ = handles.levels.reload(levels(verbosity));
        let _ = handles.format.reload(layer(format));
        return;
    }
    let (levels, levels_handle) = reload::Layer::new(levels(verbosity));
    let (format, format_handle) = reload::Layer::new(layer(format));
    // Who embeds us may have a log of their own.
    if tracing_subscriber::registry().with(levels).with(format).try_init().is_ok() {
        let _ = HANDLES.set(Handles { levels: levels_handle, format: format_handle });
    }
}

fn layer(format: LogFormat) -> Format {
    // A log that cannot be written is lost. To say so on stderr, as the library does by default, would
    // fail as well, and panic.
    let layer =
        fmt::layer().with_writer(std::io::stderr).with_target(false).log_internal_errors(false);
    match format {
        LogFormat::Text if FOR_PEOPLE.load(Ordering::Relaxed) => {
            layer.event_format(format::PLAIN).boxed()
        }
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.event_format(format::JSON).boxed(),
    }
}

/// What kube-proxy's numbers mean for us: 0 is what matters (it starts, stops, something is wrong),
/// 2 adds each commit, 4 each step. What HTTP and TLS have to say is so much that ours would drown in
/// it; there, too, 8 is the level for requests.
fn levels(verbosity: u8) -> Targets {
    let (own, libraries) = match verbosity {
        0..=1 => (LevelFilter::INFO, LevelFilter::WARN),
        2..=3 => (LevelFilter::DEBUG, LevelFilter::WARN),
        4..=7 => (LevelFilter::TRACE, LevelFilter::WARN),
        8..=9 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(libraries).with_target("shunt", own)
}
