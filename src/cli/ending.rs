//! How the agent's process ends: at once and in every phase when it is asked to (SIGTERM, SIGINT), and
//! with exit code 1 when one of its threads dies. Rules stay in any case, and a commit is one system
//! call, so there is nothing that an end could interrupt halfway.

use std::panic;
use std::process::exit;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// The time for the last log line: standard error may be a pipe that is full.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What the process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It runs until it is asked to end, which is a success then.
    Unending,
    /// It has something to finish.
    Once,
}

/// Ends the process when it is asked to. To be called before any other thread is started.
///
/// # Errors
/// If the system gives us no thread.
pub(super) fn end_when_asked(work: Work) -> anyhow::Result<()> {
    let mut asked = SigSet::empty();
    asked.add(Signal::SIGTERM);
    asked.add(Signal::SIGINT);
    // The kernel ignores signals to the first process of a container, which are neither handled nor
    // blocked. All threads inherit this.
    asked.thread_block().context("cannot block signals")?;
    super::process::start_thread("signals", move || {
        loop {
            // It fails only for a set without signals.
            let Ok(signal) = asked.wait() else { continue };
            match work {
                Work::Unending => end(0, || {
                    tracing::info!("stopping; the rules stay (`shunt cleanup` removes them)");
                }),
                Work::Once => end(1, move || {
                    tracing::error!("stopped by {signal} before the work was done");
                }),
            }
        }
    })
}

/// Ends the process when a thread panics: what that one did is missing, and a new process does it.
pub(super) fn end_when_a_thread_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current().name().unwrap_or("without a name").to_owned();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let reason = text.unwrap_or("for an unknown reason").to_owned();
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

/// Ends the process when it is dropped: held by a thread that must not end.
#[derive(Debug)]
pub(super) struct Vital(pub(super) &'static str);

impl Drop for Vital {
    fn drop(&mut self) {
        let thread = self.0;
        end(1, move || {
            tracing::error!(
                thread,
                "a thread of the agent has ended, which is a bug; the rules stay"
            );
        });
    }
}

/// Ends the process with this exit code, after a last log line if that can be written.
fn end(code: i32, last_words: impl FnOnce() + Send + 'static) {
    let (said, done) = mpsc::channel();
    // In a thread of its own: this one may be in the midst of a log line.
    let speaker = thread::Builder::new().name("end".to_owned()).spawn(move || {
        last_words();
        let _ = said.send(());
    });
    if speaker.is_ok() {
        let _ = done.recv_timeout(LAST_WORDS);
    }
    exit(code);
}
