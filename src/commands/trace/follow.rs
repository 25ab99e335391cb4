//! The loop of the command: events in, reports out, until the count or the time is reached.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, TraceListener};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::packets::{Packets, REPLY_TIMEOUT};
use super::report::Words;
use super::table::TraceTable;
use super::{Report, Target};

/// Traces packets in the network namespace of this thread, until so many came (of each client, only
/// the first one counts), the time is over or `stop` becomes readable. Calls `each` with the report
/// of each packet. Returns true if `stop` ended it.
///
/// # Errors
/// If the kernel refuses a listing, the subscription or the table.
pub(super) fn follow(
    target: &Target,
    timeout: Duration,
    stop: BorrowedFd<'_>,
    mut each: impl FnMut(Report),
) -> Result<bool, Error> {
    // Without NAT, connection tracking may be off, and a rule about replies would switch it on.
    let replies = Words::read(target)?.has_nat();
    let mut listener = TraceListener::open()?;
    let _table = TraceTable::install(target, replies)?;
    tracing::info!(to = %target.to, protocol = %target.protocol, count = target.count, ?timeout, "waiting for packets");
    let end = Instant::now() + timeout;
    let mut packets = Packets::new(replies);
    let (mut found, mut is_stopped, mut has_lost) = (0, false, false);
    while found < target.count && !is_stopped {
        let now = Instant::now();
        let next = packets.next_due();
        // A packet that was seen in time gets its report.
        if now >= end && next.is_none() {
            break;
        }
        let time = next.unwrap_or(end).saturating_duration_since(now);
        is_stopped = wait(&listener, stop, time)?;
        let now = Instant::now();
        has_lost |= listener.drain(|event| packets.take(&event, now))?;
        for (packet, outcome) in packets.finished(Instant::now()) {
            found += 1;
            each(Words::read(target)?.report(&packet, &outcome, replies));
        }
    }
    if has_lost {
        tracing::warn!("the kernel dropped events, so that steps of packets may be missing");
    }
    Ok(is_stopped)
}

/// Follows the one packet of a client that this process is.
pub(in crate::commands) struct Tracer {
    listener: TraceListener,
    _table: TraceTable,
    packets: Packets,
    target: Target,
    begin: Instant,
}

impl Tracer {
    /// Begins, in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription or the table.
    pub(in crate::commands) fn begin(target: Target) -> Result<Tracer, Error> {
        let listener = TraceListener::open()?;
        let _table = TraceTable::install(&target, true)?;
        Ok(Tracer { listener, _table, packets: Packets::new(true), target, begin: Instant::now() })
    }

    /// Returns where the packet has been sent so far.
    pub(in crate::commands) fn destination(&mut self) -> Result<Option<SocketAddr>, Error> {
        self.listener.drain(|event| self.packets.take(&event, self.begin))?;
        Ok(self.packets.destination())
    }

    /// Returns what became of the packet; `None` if the kernel told nothing of it.
    pub(in crate::commands) fn report(mut self) -> Result<Option<Report>, Error> {
        self.destination()?;
        let Some((packet, outcome)) = self.packets.finished(self.begin + REPLY_TIMEOUT).pop()
        else {
            return Ok(None);
        };
        Ok(Some(Words::read(&self.target)?.report(&packet, &outcome, true)))
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
