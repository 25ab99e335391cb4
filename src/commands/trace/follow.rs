//! The loop of the command: events in, reports out, until the count or the time is reached.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, TraceListener};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::packets::{Packets, REPLY_TIMEOUT};
use super::report::Words;
use super::table::TraceTable;
use super::{Target, TraceReport};

/// Traces packets in the network namespace of this thread, until so many came (of each client, only
/// the first one counts), the time is over or `stop` becomes readable. Calls `each` with the report
/// of each packet. Returns true if `stop` ended it.
///
/// # Errors
/// If the kernel refuses a listing, the subscription or the table.
pub(super) fn follow(
    target: Target,
    timeout: Duration,
    stop: BorrowedFd<'_>,
    mut each: impl FnMut(TraceReport),
) -> Result<bool, Error> {
    let Target { to, protocol, count, .. } = target;
    let mut tracer = Tracer::begin(target)?;
    tracing::info!(%to, %protocol, count, ?timeout, "waiting for packets");
    let end = Instant::now() + timeout;
    let (mut found, mut is_stopped, mut has_lost) = (0, false, false);
    while found < count && !is_stopped {
        let now = Instant::now();
        let next = tracer.packets.next_due();
        // A packet that was seen in time gets its report.
        if now >= end && next.is_none() {
            break;
        }
        let time = next.unwrap_or(end).saturating_duration_since(now);
        is_stopped = wait(&tracer.listener, stop, time)?;
        has_lost |= tracer.take()?;
        for report in tracer.reports(Instant::now())? {
            found += 1;
            each(report);
        }
    }
    if has_lost {
        tracing::warn!("the kernel dropped events; steps of packets may be missing");
    }
    Ok(is_stopped)
}

/// Packets that are followed while this exists.
pub(in crate::commands) struct Tracer {
    listener: TraceListener,
    _table: TraceTable,
    packets: Packets,
    target: Target,
}

impl Tracer {
    /// Begins, in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses a listing, the subscription or the table.
    pub(in crate::commands) fn begin(target: Target) -> Result<Tracer, Error> {
        let listener = TraceListener::open()?;
        let _table = TraceTable::install(&target)?;
        Ok(Tracer { listener, _table, packets: Packets::default(), target })
    }

    /// Takes the events so far. Returns true if the kernel dropped some.
    fn take(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        self.listener.drain(|event| self.packets.take(&event, now))
    }

    /// Returns the reports about the packets whose outcome is known.
    fn reports(&mut self, now: Instant) -> Result<Vec<TraceReport>, Error> {
        let finished = self.packets.finished(now).into_iter();
        let report = |packet| Ok(Words::read(&self.target)?.report(&packet));
        finished.map(report).collect()
    }

    /// Returns where the packet has been sent so far.
    pub(in crate::commands) fn destination(&mut self) -> Result<Option<SocketAddr>, Error> {
        self.take()?;
        Ok(self.packets.destination())
    }

    /// Returns what became of the packet, whose client waits no longer; `None` if the kernel told
    /// nothing of it.
    pub(in crate::commands) fn report(mut self) -> Result<Option<TraceReport>, Error> {
        self.take()?;
        Ok(self.reports(Instant::now() + REPLY_TIMEOUT)?.pop())
    }
}

/// Waits for events; returns true if `stop` became readable.
fn wait(listener: &TraceListener, stop: BorrowedFd<'_>, time: Duration) -> Result<bool, Error> {
    let mut fds =
        [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(stop, PollFlags::POLLIN)];
    // Rounded up: otherwise the last millisecond would be a busy loop.
    let time = PollTimeout::try_from(time + Duration::from_millis(1));
    match poll(&mut fds, time.unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(Error::Receive(errno.into())),
    }
    Ok(fds[1].any().unwrap_or(false))
}
