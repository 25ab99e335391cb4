//! The loop of the command: events in, reports out, until the count or the time is reached.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, TraceListener};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shunt_core::plan::NodeContext;

use super::report::Words;
use super::{Packets, Report, Target, TraceTable};

/// How the trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// True if a signal ended it.
    pub stopped: bool,
    /// True if the kernel dropped events, so that reports may lack steps.
    pub lost_events: bool,
}

/// A running trace. A drop of the value ends it and deletes its table.
pub struct Tracer {
    words: Words,
    listener: TraceListener,
    count: u32,
    timeout: Duration,
    replies: bool,
    /// After the listener, so that it is deleted last.
    _table: TraceTable,
}

impl Tracer {
    /// Begins to trace in the network namespace of this thread, until so many packets came (of each
    /// client, only the first one counts) or the time is over. `node_context` is that of the
    /// running agent, by which the rules of shunt are recognised.
    ///
    /// # Errors
    /// If the kernel refuses a listing, the subscription or the table.
    pub fn start(
        target: &Target,
        count: u32,
        timeout: Duration,
        node_context: &NodeContext,
    ) -> Result<Tracer, Error> {
        let words = Words::read(target, node_context)?;
        // Without NAT, connection tracking may be off, and a rule about replies would switch it on.
        let replies = words.has_nat();
        let listener = TraceListener::open()?;
        let table = TraceTable::install(target, count, replies)?;
        Ok(Tracer { words, listener, count, timeout, replies, _table: table })
    }

    /// Calls `each` with the report of each packet, until a limit is reached or `stop` becomes
    /// readable.
    ///
    /// # Errors
    /// If the listener fails.
    pub fn follow(
        mut self,
        stop: BorrowedFd<'_>,
        mut each: impl FnMut(Report),
    ) -> Result<Ended, Error> {
        let end = Instant::now() + self.timeout;
        let mut packets = Packets::new(self.replies);
        let mut ended = Ended { stopped: false, lost_events: false };
        let mut count = 0;
        while count < self.count && !ended.stopped {
            let now = Instant::now();
            let next = packets.next_due();
            // A packet that was seen in time gets its report.
            if now >= end && next.is_none() {
                break;
            }
            ended.stopped = self.wait(stop, next.unwrap_or(end).saturating_duration_since(now))?;
            let now = Instant::now();
            ended.lost_events |= self.listener.drain(|event| packets.take(&event, now))?;
            for (packet, outcome) in packets.finished(Instant::now()) {
                count += 1;
                each(self.words.report(&packet, &outcome, self.replies));
            }
        }
        Ok(ended)
    }

    /// Waits for events; returns true if `stop` became readable.
    fn wait(&self, stop: BorrowedFd<'_>, time: Duration) -> Result<bool, Error> {
        use std::os::fd::AsFd as _;
        let mut fds = [
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop, PollFlags::POLLIN),
        ];
        // Rounded up: otherwise the last millisecond would be a busy loop.
        let time = PollTimeout::try_from(time + Duration::from_millis(1));
        match poll(&mut fds, time.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Error::Receive(errno.into())),
        }
        Ok(fds[1].any().unwrap_or(false))
    }
}
