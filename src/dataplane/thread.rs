//! The thread that commits: the only one that writes to nf_tables.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use shunt_core::model::ChangeCounts;

use super::command::{Command, Commands, channel};
use super::worker::{Pace, Worker};
use super::{Dataplane, Event};

/// Starts the thread. It calls `report` with each event. The sending thread calls `noticed` with
/// each batch of changes.
///
/// The thread syncs as soon as a change arrives; changes that arrive during a commit form the next
/// one. It ends when all senders are dropped. The end of the process cannot interrupt a commit,
/// which is one system call.
///
/// # Errors
/// If the system refuses to start a thread.
pub fn spawn(
    dataplane: Dataplane,
    pace: Pace,
    noticed: impl Fn(ChangeCounts) + Send + Sync + 'static,
    report: impl FnMut(Event<'_>) + Send + 'static,
) -> std::io::Result<Commands> {
    let (sender, commands, backlog) = channel(Arc::new(noticed));
    let worker = Worker::new(dataplane, backlog, pace, report, Instant::now());
    std::thread::Builder::new()
        .name("dataplane".to_owned())
        .spawn(move || run(worker, &commands))?;
    Ok(sender)
}

fn run(mut worker: Worker<impl FnMut(Event<'_>)>, commands: &Receiver<Command>) {
    loop {
        let now = Instant::now();
        let received = match worker.next_wake(now) {
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => commands.recv_timeout(at.saturating_duration_since(now)),
        };
        match received {
            Ok(first) => {
                worker.take(first);
                commands.try_iter().for_each(|command| worker.take(command));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        worker.look(Instant::now());
        worker.work(Instant::now());
        worker.clean_up(Instant::now());
    }
}
