//! The transfer of listeners from an ending agent to one that waits for its lock.
//!
//! Owns: the sockets of waiting agents in the ending one ([`Heirs`]), and the connection of a waiting
//! agent ([`Heir`]). The listeners pass as file descriptors (`SCM_RIGHTS`), with the connections that
//! wait in their queues: no client is refused. They pass at the end only. A copy in another process
//! would keep a port open that the agent closes.
//!
//! Must not know: the purpose of the listeners.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::presence::{Peer, connect_to_agent};
use crate::query::Question;

/// The maximum number of file descriptors in a message, a bit less than the kernel's (`SCM_MAX_FD`).
const MAX_FILES: usize = 250;
/// The maximum number of waiting agents.
const MAX_HEIRS: usize = 16;
/// The pause before a waiting agent connects again: the other one may be too old to know it.
const RECONNECT: Duration = Duration::from_secs(1);
/// The timeout of a connection to the other agent.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);
/// How long an agent that has the lock waits for the end of the other one's last message.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(500);

/// The agents that wait until this one ends. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Heirs {
    streams: Arc<Mutex<Vec<UnixStream>>>,
    /// The number of log lines in progress.
    lines: Arc<AtomicUsize>,
}

impl Heirs {
    fn lock(&self) -> MutexGuard<'_, Vec<UnixStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the connection of a waiting agent.
    pub fn add(&self, stream: UnixStream) {
        let process = Peer::of(&stream).map_or(0, |peer| peer.process);
        let mut heirs = self.lock();
        heirs.retain(is_open);
        if heirs.len() < MAX_HEIRS && stream.set_nonblocking(true).is_ok() {
            heirs.push(stream);
            self.log(process);
        }
    }

    /// Logs in a thread of its own: standard error may be a full pipe, and the thread of the caller
    /// answers commands.
    fn log(&self, process: i32) {
        let lines = self.lines.clone();
        if lines.fetch_add(1, Ordering::Relaxed) >= MAX_HEIRS {
            lines.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // Without a thread the line is missing, and nothing else.
        let _ = thread::Builder::new().name("heir".to_owned()).spawn(move || {
            tracing::info!(process, "another shunt waits until this one ends");
            lines.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Returns the number of waiting agents.
    #[must_use]
    pub fn count(&self) -> usize {
        let mut heirs = self.lock();
        heirs.retain(is_open);
        heirs.len()
    }

    /// Sends the listeners to all waiting agents. One of them gets the lock; the others close them.
    /// Returns the number of agents that got all. Their connections stay open until this process ends,
    /// so that they notice its end and not this message's.
    pub fn send(&self, listeners: &[impl AsRawFd]) -> usize {
        let files: Vec<RawFd> = listeners.iter().map(AsRawFd::as_raw_fd).collect();
        let heirs = self.lock();
        let sent = heirs.iter().filter(|heir| files.chunks(MAX_FILES).all(|it| send(heir, it)));
        sent.count()
    }
}

fn send(heir: &UnixStream, files: &[RawFd]) -> bool {
    let (bytes, rights) = ([IoSlice::new(b"l")], [ControlMessage::ScmRights(files)]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(heir.as_raw_fd(), &bytes, &rights, flags, None).is_ok()
}

/// Returns true if the other end is open. It sends nothing after its question.
fn is_open(stream: &UnixStream) -> bool {
    let (mut byte, mut control) = ([0], RecvAncillaryBuffer::default());
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let read = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
    read.is_err_and(|errno| errno == rustix::io::Errno::AGAIN)
}

/// The name of an agent's socket: random, and so different for each agent. Process IDs are not
/// visible across containers.
type Name = Vec<u8>;

/// An agent that waits.
#[derive(Debug, Default)]
pub struct Heir {
    connection: Option<UnixStream>,
    connected_at: Option<Instant>,
    /// The agent that `files` are from.
    agent: Option<Name>,
    files: Vec<OwnedFd>,
}

impl Heir {
    /// Asks the agent that has the lock for its listeners, once, and receives those that it has sent.
    /// Never waits for it.
    pub fn look(&mut self) {
        self.look_by(connect);
    }

    fn look_by(&mut self, connect: impl FnOnce() -> Option<(UnixStream, Name)>) {
        // With listeners, another agent that has got the lock must be noticed soon: it has them, too.
        let is_early =
            self.files.is_empty() && self.connected_at.is_some_and(|at| at.elapsed() < RECONNECT);
        if self.connection.is_none() && !is_early {
            self.connected_at = Some(Instant::now());
            if let Some((connection, agent)) = connect() {
                // An agent that is still ending keeps the lock for a while.
                if self.agent.as_ref() != Some(&agent) {
                    self.files.clear();
                }
                (self.connection, self.agent) = (Some(connection), Some(agent));
            }
        }
        self.receive();
    }

    fn receive(&mut self) {
        let Some(connection) = &self.connection else { return };
        loop {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            match recvmsg(connection, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
                Ok(message) if message.bytes > 0 => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(files) = message {
                            self.files.extend(files);
                        }
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Ok(_) | Err(_) => {
                    self.connection = None;
                    return;
                }
            }
        }
    }

    /// Returns the listeners on loopback addresses, now that this agent has the lock.
    #[must_use]
    pub fn take(mut self) -> Vec<(SocketAddr, TcpListener)> {
        if let Some(connection) = &self.connection {
            // The other agent has sent all, and ends.
            let _ = connection.set_nonblocking(false);
            let _ = connection.set_read_timeout(Some(LAST_MESSAGE_TIMEOUT));
            self.receive();
        }
        let is_listening = |file: &OwnedFd| getsockopt(file, sockopt::AcceptConn) == Ok(true);
        let listeners = self.files.into_iter().filter(is_listening).map(TcpListener::from);
        let with_address = listeners.filter_map(|it| Some((it.local_addr().ok()?, it)));
        with_address.filter(|(address, _)| address.ip().is_loopback()).collect()
    }
}

/// Connects to the agent of this network namespace, and asks for its listeners.
fn connect() -> Option<(UnixStream, Name)> {
    let ask = || -> io::Result<Option<(UnixStream, Name)>> {
        let Some((mut stream, agent)) = connect_to_agent(CONNECT_TIMEOUT)? else { return Ok(None) };
        if !agent.is_trusted() {
            return Ok(None);
        }
        let mut line = serde_json::to_vec(&Question::Inherit)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        stream.set_nonblocking(true)?;
        let name = stream.peer_addr()?.as_abstract_name().unwrap_or_default().to_vec();
        Ok(Some((stream, name)))
    };
    ask().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// An agent with a listener, and one that waits for its end.
    fn agent_and_heir() -> (Heirs, TcpListener, Heir) {
        let heirs = Heirs::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut heir = Heir::default();
        heir.look_by(|| Some((connected(&heirs), b"first".to_vec())));
        (heirs, listener, heir)
    }

    fn connected(heirs: &Heirs) -> UnixStream {
        let (mine, other) = UnixStream::pair().unwrap();
        mine.set_nonblocking(true).unwrap();
        heirs.add(other);
        mine
    }

    fn not_again() -> Option<(UnixStream, Name)> {
        panic!("the connection is open")
    }

    #[test]
    fn listeners_stay_while_their_agent_is_still_ending() {
        let (heirs, listener, mut heir) = agent_and_heir();
        assert_eq!(heirs.send(&[listener.as_fd()]), 1);
        for _ in 0..3 {
            heir.look_by(not_again);
        }
        drop(heirs);
        // The lock is still taken, first without an agent at the socket, then by the same one.
        let (again, end) = UnixStream::pair().unwrap();
        drop(end);
        heir.look_by(not_again);
        heir.look_by(|| None);
        heir.look_by(|| Some((again, b"first".to_vec())));
        let taken: Vec<_> = heir.take().into_iter().map(|(address, _)| address).collect();
        assert_eq!(taken, [listener.local_addr().unwrap()]);
    }

    #[test]
    fn listeners_are_closed_once_another_agent_has_the_lock() {
        let (heirs, listener, mut heir) = agent_and_heir();
        assert_eq!(heirs.send(&[listener.as_fd()]), 1);
        heir.look_by(not_again);
        drop(heirs);
        heir.look_by(not_again);
        let next = Heirs::default();
        heir.look_by(|| Some((connected(&next), b"second".to_vec())));
        assert!(heir.files.is_empty());
        assert!(heir.take().is_empty());
    }
}
