//! How the agent's process ends: at once on SIGTERM and SIGINT, in every phase, and with exit code
//! 1 when one of its threads panics. Rules stay in any case. A commit is one system call, so the end
//! of the process cannot interrupt it halfway.

use std::panic;
use std::process::exit;
use std::sync::mpsc;
use std::thread;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

use super::logging;

/// Ends the process on SIGTERM or SIGINT: the end of an agent is a success, that of a task before it is
/// finished a failure. Must be called before any other thread is started.
///
/// # Errors
/// If the system refuses to start a thread.
pub(crate) fn end_when_asked(is_agent: bool) -> anyhow::Result<()> {
    let asked: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    // To the first process of a container, the kernel delivers only signals that the process
    // handles or blocks. All threads inherit the mask.
    asked.thread_block().context("cannot block signals")?;
    super::process::start_thread("signals", move || {
        loop {
            // `sigwait` fails only for an empty set.
            let Ok(signal) = asked.wait() else { continue };
            match is_agent {
                true => end(0, || {
                    tracing::info!("stopping; the rules stay (`shunt cleanup` removes them)");
                }),
                false => end(1, move || {
                    tracing::error!("stopped by {signal} before the work was done");
                }),
            }
        }
    })
}

/// Ends the process when a thread panics: its work would be missing. A new process takes it up.
pub(crate) fn end_when_a_thread_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current().name().unwrap_or("without a name").to_owned();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("unknown reason").to_owned();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        end(1, move || {
            tracing::error!(
                thread,
                place,
                "a thread of the agent panicked, which is a bug: {reason}; the rules stay"
            );
        });
    }));
}

/// Ends the process with this exit code, after a last log line, if standard error accepts it.
fn end(code: i32, last_words: impl FnOnce() + Send + 'static) {
    let (said, done) = mpsc::channel();
    // In a thread of its own: this one may hold the lock of the log.
    let speaker = thread::Builder::new().name("end".to_owned()).spawn(move || {
        last_words();
        logging::flush();
        let _ = said.send(());
    });
    if speaker.is_ok() {
        let _ = done.recv_timeout(logging::LAST_LINES_TIMEOUT);
    }
    exit(code);
}
