//! From the agent to whoever asks on its node.
//!
//! A client that connects gets the status as JSON, if it is root or the agent's own user, and the
//! connection ends.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;

use super::Status;
use crate::presence::connect_to_agent;

/// How long the agent may take to answer, and the command to read it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a client that could not be served.
const RETRY: Duration = Duration::from_millis(200);

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum NoStatus {
    /// No agent runs in this network namespace.
    #[error("no shunt runs in this network namespace")]
    NoAgent,
    /// The agent takes connections, but does not answer.
    #[error("shunt runs (process {0}), but does not answer within {PATIENCE:?}: it hangs")]
    Silent(i32),
    /// The agent takes no connections.
    #[error("shunt runs, but takes no connection within {PATIENCE:?}: it hangs")]
    Deaf,
    /// Somebody has taken the name who may not run an agent here.
    #[error("process {process} of user {user} pretends to be shunt: end it")]
    Impostor {
        /// The process.
        process: i32,
        /// Its user.
        user: u32,
    },
    /// We may not ask.
    #[error("shunt (process {0}) tells its status only to root")]
    Refused(i32),
    /// The answer cannot be read.
    #[error(
        "shunt (process {process}) is of another version: its status cannot be read ({reason})"
    )]
    Unreadable {
        /// The process.
        process: i32,
        /// Why.
        reason: serde_json::Error,
    },
    /// The kernel does not let us ask.
    #[error("cannot ask for the status: {0}")]
    System(io::Error),
}

impl From<io::Error> for NoStatus {
    fn from(error: io::Error) -> NoStatus {
        NoStatus::System(error)
    }
}

/// Tells the status to clients of this listener, for ever.
pub fn serve(listener: &UnixListener, status: impl Fn() -> Status) {
    loop {
        let told = listener.accept().and_then(|(stream, _)| tell(stream, &status));
        if let Err(error) = told {
            tracing::debug!(%error, "a client did not get the status");
            // Without file descriptors the next attempt would fail as fast.
            std::thread::sleep(RETRY);
        }
    }
}

fn tell(mut stream: UnixStream, status: impl Fn() -> Status) -> io::Result<()> {
    let peer = getsockopt(&stream, PeerCredentials)?;
    if may_talk_to(Uid::from_raw(peer.uid())) {
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(serde_json::to_string(&status())?.as_bytes())?;
    }
    Ok(())
}

/// Asks the agent of this network namespace.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask() -> Result<Status, NoStatus> {
    let (mut stream, process, user) = match connect_to_agent(PATIENCE) {
        Ok(Some(agent)) => agent,
        Ok(None) => return Err(NoStatus::NoAgent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoStatus::Deaf),
        Err(error) => return Err(error.into()),
    };
    if !may_talk_to(user) {
        return Err(NoStatus::Impostor { process, user: user.as_raw() });
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut json = Vec::new();
    match stream.read_to_end(&mut json) {
        Ok(0) => return Err(NoStatus::Refused(process)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(NoStatus::Silent(process));
        }
        Err(error) => return Err(error.into()),
    }
    let mut status: Status =
        serde_json::from_slice(&json).map_err(|reason| NoStatus::Unreadable { process, reason })?;
    // In its container the agent has another number than out here.
    if let Ok(visible @ 1..) = u32::try_from(process) {
        status.process = visible;
    }
    Ok(status)
}

/// Whether that user may be an agent here, or ask one.
fn may_talk_to(user: Uid) -> bool {
    user.is_root() || user == Uid::effective()
}
