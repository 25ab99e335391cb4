//! The channel to the dataplane's thread: what waits in it, and since when.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shunt_core::model::{ChangeBatch, ChangeCounts};
use shunt_core::plan::Options;

/// What the thread is to do.
#[derive(Debug)]
pub enum Command {
    /// Take in changed objects.
    Changes(ChangeBatch),
    /// Take in a changed configuration.
    Configure(Configure),
}

/// The part of the configuration that the dataplane goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configure {
    /// How to plan.
    pub options: Options,
    /// The name of our node.
    pub node_name: String,
    /// The least time between two commits.
    pub min_period: Duration,
}

/// The sending end. Clones lead to the same thread.
#[derive(Clone)]
pub struct Commands {
    sender: Sender<Command>,
    backlog: Backlog,
    noticed: Noticed,
}

/// Called with each command's number of changes before it is sent, in the thread that sends it.
pub(super) type Noticed = Arc<dyn Fn(ChangeCounts) + Send + Sync>;

/// The thread is gone: the command will not be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane has stopped")]
pub struct Stopped;

/// Since when commands have been waiting: for a thread that is busy, that hangs, or that cannot commit.
/// Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// When each command was sent that the thread has not taken yet.
    queued: VecDeque<Instant>,
    /// When the oldest was sent of those that it has taken, but that are not in the kernel yet; or
    /// when it failed to repair what another process had changed.
    taken: Option<Instant>,
}

/// Both ends of a channel, and what waits in between.
pub(super) fn channel(noticed: Noticed) -> (Commands, Receiver<Command>, Backlog) {
    let (sender, commands) = mpsc::channel();
    let backlog = Backlog::default();
    (Commands { sender, backlog: backlog.clone(), noticed }, commands, backlog)
}

impl Commands {
    /// Sends a command.
    ///
    /// # Errors
    /// [`Stopped`] if the thread is gone.
    pub fn send(&self, command: Command) -> Result<(), Stopped> {
        (self.noticed)(match &command {
            Command::Changes(batch) => batch.counts(),
            Command::Configure(_) => ChangeCounts::default(),
        });
        // The thread counts what it takes, so the commands must come in the order of this list.
        let mut waiting = self.backlog.lock();
        waiting.queued.push_back(Instant::now());
        self.sender.send(command).map_err(|_| Stopped)
    }

    /// Returns what a source hands its batches to. It breaks once the thread is gone, as when the process
    /// ends.
    pub fn sink(&self) -> impl Fn(ChangeBatch) -> ControlFlow<()> + Send + 'static {
        let commands = self.clone();
        move |batch| match commands.send(Command::Changes(batch)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Stopped) => ControlFlow::Break(()),
        }
    }

    /// Shows what waits.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.backlog.clone()
    }
}

impl Backlog {
    /// When the oldest command was sent that the kernel does not reflect yet, or since when it holds
    /// something else than is planned.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        let waiting = self.lock();
        waiting.taken.or_else(|| waiting.queued.front().copied())
    }

    /// The thread took the next command.
    pub(super) fn take(&self) {
        let mut waiting = self.lock();
        let next = waiting.queued.pop_front();
        waiting.taken = waiting.taken.or(next);
    }

    /// The kernel does not hold what is planned, and cannot be brought to.
    pub(super) fn fail(&self, now: Instant) {
        self.lock().taken.get_or_insert(now);
    }

    /// Nothing of what was taken has to wait any more.
    pub(super) fn finish(&self) {
        self.lock().taken = None;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // What was noted stays true, whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(commands: &Commands) -> Result<(), Stopped> {
        commands.send(Command::Changes(ChangeBatch::new(Vec::new(), Instant::now())))
    }

    #[test]
    fn the_oldest_command_counts_until_it_is_committed() {
        let (commands, receiver, backlog) = channel(Arc::new(|_| ()));
        assert_eq!(backlog.oldest(), None);
        send(&commands).expect("a receiver");
        let first = backlog.oldest().expect("one that waits");
        send(&commands).expect("a receiver");
        assert_eq!(backlog.oldest(), Some(first));

        assert_eq!(receiver.try_iter().count(), 2);
        backlog.take();
        backlog.take();
        assert_eq!(backlog.oldest(), Some(first), "taken is not followed");
        send(&commands).expect("a receiver");
        backlog.finish();
        let third = backlog.oldest().expect("one that came meanwhile");
        assert!(third > first);
        // That one is taken and cannot be committed, and more come.
        backlog.take();
        send(&commands).expect("a receiver");
        backlog.take();
        assert_eq!(backlog.oldest(), Some(third));
        backlog.finish();
        assert_eq!(backlog.oldest(), None);
    }

    #[test]
    fn a_failed_repair_waits_without_a_command() {
        let (_commands, _receiver, backlog) = channel(Arc::new(|_| ()));
        backlog.fail(Instant::now());
        let since = backlog.oldest().expect("a failure");
        backlog.fail(Instant::now());
        assert_eq!(backlog.oldest(), Some(since), "the first failure counts");
        backlog.finish();
        assert_eq!(backlog.oldest(), None);
    }

    #[test]
    fn commands_to_a_stopped_thread_keep_waiting() {
        let (commands, receiver, backlog) = channel(Arc::new(|_| ()));
        drop(receiver);
        assert_eq!(send(&commands), Err(Stopped));
        assert!(backlog.oldest().is_some());
    }
}
