//! The log on stderr: text for people or JSON for collectors.

mod format;
mod queue;

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use super::args::Logging;
use super::process::start_thread;
use crate::config::{self, LogFormat};
use crate::serve::escape;
use format::{IsJson, LineFormat};
use queue::LogQueue;

/// What a changed configuration changes of the log, of which a process has one.
static CHANGEABLE: OnceLock<(reload::Handle<Targets, Registry>, IsJson)> = OnceLock::new();

/// True for commands: their text goes to a person at a terminal.
static FOR_PEOPLE: AtomicBool = AtomicBool::new(false);

/// The lines of `shunt run`, whose threads must not wait for a reader.
static QUEUE: LogQueue = LogQueue::new();

/// How long the end of the process waits for the last lines: standard error may be a full pipe.
pub(crate) const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits until the lines so far are written, but not for long.
pub(crate) fn flush() {
    QUEUE.flush(LAST_LINES_TIMEOUT);
}

/// Returns the number of lines that were lost because standard error did not take them.
pub(crate) fn lost_lines() -> u64 {
    QUEUE.lost.load(Ordering::Relaxed)
}

/// Starts the log with defaults, and with messages for people, `error: …`, in place of log lines.
pub(crate) fn tell_people() {
    FOR_PEOPLE.store(true, Ordering::Relaxed);
    start(LogFormat::default(), 0);
}

/// Starts the log with the flags only, for commands without a configuration.
pub(crate) fn start_with(logging: &Logging) {
    // The caller reports invalid flags; the log starts with defaults then.
    match config::load(None, &logging.flags) {
        Ok(loaded) => start(loaded.config.log_format, loaded.config.verbosity),
        Err(_) => start(LogFormat::default(), 0),
    }
}

/// Starts the log with this format and verbosity, or changes them.
pub(crate) fn start(format: LogFormat, verbosity: u8) {
    let is_json = format == LogFormat::Json;
    if let Some((levels_handle, json)) = CHANGEABLE.get() {
        // Fails only without a subscriber.
        let _ = levels_handle.reload(levels(verbosity));
        return json.store(is_json, Ordering::Relaxed);
    }
    let for_people = FOR_PEOPLE.load(Ordering::Relaxed);
    let json = IsJson::new(is_json.into());
    let (levels, levels_handle) = reload::Layer::new(levels(verbosity));
    let format = LineFormat::new(for_people, json.clone());
    let writer = move || -> Escaped<Box<dyn Write>> {
        Escaped(if for_people { Box::new(io::stderr()) } else { Box::new(&QUEUE) })
    };
    // Lines that stderr does not accept are lost. The library's default is to report that on
    // stderr, which would fail, too, and panic.
    let layer = fmt::layer().event_format(format).with_writer(writer).log_internal_errors(false);
    // `Escaped` does this, also for ends of lines.
    let layer = layer.with_ansi(false).with_ansi_sanitization(false);
    // A program that embeds the library may have a log already.
    if tracing_subscriber::registry().with(levels).with(layer).try_init().is_ok() {
        let _ = CHANGEABLE.set((levels_handle, json));
        if !for_people {
            // Where the system refuses this thread, it refuses the others, and the process ends.
            let _ = start_thread("log", || QUEUE.run(io::stderr(), report_lost));
        }
    }
}

fn report_lost(lines: u64) {
    tracing::warn!(lines, "log lines were lost here: nothing read standard error in time");
}

/// Escapes each line, which the log writes with one call.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = escape::line(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{text}\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the levels for a verbosity of kube-proxy: 0 logs starts, stops and problems, 2 adds each
/// commit, 4 each step. The libraries for HTTP and TLS log very much; 8 adds their requests, like
/// kube-proxy. kube warns with the whole body of an answer that it cannot decode.
fn levels(verbosity: u8) -> Targets {
    let (own, libraries) = match verbosity {
        0..=1 => (LevelFilter::INFO, LevelFilter::WARN),
        2..=3 => (LevelFilter::DEBUG, LevelFilter::WARN),
        4..=7 => (LevelFilter::TRACE, LevelFilter::WARN),
        8..=9 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let kube = if libraries == LevelFilter::WARN { LevelFilter::OFF } else { libraries };
    let targets = Targets::new().with_default(libraries).with_target("shunt", own);
    targets.with_target("kube_client", kube)
}
