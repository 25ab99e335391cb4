//! The pipes between two sockets. A connection has a pipe only while data is in it, so that an idle
//! connection costs no more than its sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::unistd::pipe2;

/// The number of unused pipes to keep.
const MAX_UNUSED: usize = 32;
/// The maximum number of bytes of one splice: the default capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// An empty pipe, or one with the data of one connection.
pub(super) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Pipe { reader, writer })
    }

    /// Moves data from a socket into the empty pipe. Returns the number of bytes; 0 at the end of
    /// the stream.
    pub(super) fn fill(&self, from: impl AsFd) -> io::Result<usize> {
        retried(|| splice(&from, None, &self.writer, None, CHUNK, flags()))
    }

    /// Moves at most `count` bytes from the pipe into a socket. Returns the number of bytes.
    pub(super) fn drain(&self, to: impl AsFd, count: usize) -> io::Result<usize> {
        match retried(|| splice(&self.reader, None, &to, None, count, flags()))? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            moved => Ok(moved),
        }
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

fn retried(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

/// The unused pipes.
#[derive(Default)]
pub(super) struct Pipes(Mutex<Vec<Pipe>>);

impl Pipes {
    fn lock(&self) -> MutexGuard<'_, Vec<Pipe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty pipe.
    pub(super) fn take(&self) -> io::Result<Pipe> {
        let unused = self.lock().pop();
        unused.map_or_else(Pipe::new, Ok)
    }

    /// Takes an empty pipe back.
    pub(super) fn give(&self, pipe: Pipe) {
        let mut unused = self.lock();
        if unused.len() < MAX_UNUSED {
            unused.push(pipe);
        }
    }
}
