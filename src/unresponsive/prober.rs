//! The agent's own connections to endpoints.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};

/// How long a connection attempt stays open. The kernel repeats its SYN after one second.
const MAX_AGE: Duration = Duration::from_secs(3);
/// The maximum number of open attempts. The agent does not begin further ones, so that no verdict
/// counts an attempt that waits.
const MAX_OPEN: usize = 1_024;

/// The result of an attempt. Attempts without an answer have no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The host has answered, if only with a reset.
    Answered,
    /// The network reports that nothing reaches the host.
    Unreachable,
    /// The attempt failed on this node, which says nothing about the host.
    NotSent,
}

/// The open attempts.
#[derive(Debug, Default)]
pub(super) struct Prober {
    open: Vec<Attempt>,
    waiting: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Attempt {
    to: SocketAddr,
    began: Instant,
    socket: OwnedFd,
}

impl Prober {
    /// Starts an attempt at the next call of [`Prober::wait`].
    pub(super) fn start(&mut self, to: SocketAddr) {
        if !self.waiting.contains(&to) {
            self.waiting.push(to);
        }
    }

    /// Waits for answers until this time. Returns early if there is one.
    pub(super) fn wait(&mut self, now: Instant, until: Instant) -> Vec<(SocketAddr, Answer)> {
        self.open.retain(|attempt| now.saturating_duration_since(attempt.began) < MAX_AGE);
        let mut answers = Vec::new();
        for to in self.waiting.drain(..) {
            if self.open.len() >= MAX_OPEN {
                answers.push((to, Answer::NotSent));
                continue;
            }
            match begin(to) {
                Ok(socket) => self.open.push(Attempt { to, began: now, socket }),
                Err(errno) => answers.push((to, answer(errno))),
            }
        }
        let left =
            if answers.is_empty() { until.saturating_duration_since(now) } else { Duration::ZERO };
        // Rounded up: a timeout of 0 before the time would spin.
        let timeout =
            PollTimeout::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(PollTimeout::ZERO);
        let mut polled: Vec<PollFd<'_>> = self
            .open
            .iter()
            .map(|attempt| PollFd::new(attempt.socket.as_fd(), PollFlags::POLLOUT))
            .collect();
        let ready: Vec<bool> = match poll(&mut polled, timeout) {
            Ok(1..) => polled.iter().map(|fd| fd.any().unwrap_or(true)).collect(),
            // None is ready, or a signal came.
            _ => return answers,
        };
        let mut ready = ready.into_iter();
        self.open.retain(|attempt| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            let result = match getsockopt(&attempt.socket, sockopt::SocketError) {
                Ok(0) => Answer::Answered,
                Ok(errno) => answer(Errno::from_raw(errno)),
                Err(_) => Answer::NotSent,
            };
            answers.push((attempt.to, result));
            false
        });
        answers
    }
}

fn begin(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

fn answer(errno: Errno) -> Answer {
    match errno {
        Errno::ECONNREFUSED | Errno::ECONNRESET => Answer::Answered,
        Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN | Errno::ETIMEDOUT => {
            Answer::Unreachable
        }
        _ => Answer::NotSent,
    }
}
