//! The channel to the dataplane's thread, and the age of the commands in it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shunt_core::model::{ChangeBatch, ChangeCounts};
use shunt_core::plan::Options;

/// A command to the dataplane's thread.
#[derive(Debug)]
pub enum Command {
    /// Apply changed objects.
    Changes(ChangeBatch),
    /// Apply a changed configuration.
    Configure(Configure),
}

/// The part of the configuration that the dataplane uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configure {
    /// The options of the plan.
    pub options: Options,
    /// The name of the agent's node.
    pub node_name: String,
    /// The minimum time between two commits.
    pub min_period: Duration,
}

/// The sending end of the channel. Clones send to the same thread.
#[derive(Clone)]
pub struct Commands {
    sender: Sender<Command>,
    backlog: Backlog,
    noticed: Noticed,
}

/// Called with each command's number of changes before it is sent, in the thread that sends it.
pub(super) type Noticed = Arc<dyn Fn(ChangeCounts) + Send + Sync>;

/// The error for a command to a thread that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane has stopped")]
pub struct Stopped;

/// The age of the waiting commands: the thread may be busy, hang, or be unable to commit. Clones
/// share the state.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// The times of the commands in the channel.
    queued: VecDeque<Instant>,
    /// The time of the oldest command that the thread has received, but not committed; or the time
    /// of a failed repair.
    taken: Option<Instant>,
}

/// Returns both ends of a channel, and its backlog.
pub(super) fn channel(noticed: Noticed) -> (Commands, Receiver<Command>, Backlog) {
    let (sender, commands) = mpsc::channel();
    let backlog = Backlog::default();
    (Commands { sender, backlog: backlog.clone(), noticed }, commands, backlog)
}

impl Commands {
    /// Sends a command.
    ///
    /// # Errors
    /// [`Stopped`] if the thread has ended.
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

    /// Returns a sink for the batches of a source. It returns `Break` after the end of the thread.
    pub fn sink(&self) -> impl Fn(ChangeBatch) -> ControlFlow<()> + Send + 'static {
        let commands = self.clone();
        move |batch| match commands.send(Command::Changes(batch)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Stopped) => ControlFlow::Break(()),
        }
    }

    /// Returns the backlog of this channel.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.backlog.clone()
    }
}

impl Backlog {
    /// Returns the time of the oldest command that is not committed, or the time since which the
    /// kernel differs from the plan.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        let waiting = self.lock();
        waiting.taken.or_else(|| waiting.queued.front().copied())
    }

    /// Notes that the thread has received the next command.
    pub(super) fn take(&self) {
        let mut waiting = self.lock();
        let next = waiting.queued.pop_front();
        waiting.taken = waiting.taken.or(next);
    }

    /// Notes a failed sync: the kernel differs from the plan.
    pub(super) fn fail(&self, now: Instant) {
        self.lock().taken.get_or_insert(now);
    }

    /// Notes that all received commands are committed.
    pub(super) fn finish(&self) {
        self.lock().taken = None;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The state stays valid after a panic of another thread.
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
        // The thread receives this command and cannot commit it, and more commands arrive.
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
