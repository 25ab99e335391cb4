//! The abstract socket between the agent and `shunt status`.
//!
//! A client that connects gets the status as JSON, if it is root or the agent's user. Then the
//! agent closes the connection.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::Status;
use crate::presence::{Peer, connect_to_agent};

/// The timeout of the agent for writing the answer, and of the command for reading it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a client that the agent could not serve.
const RETRY: Duration = Duration::from_millis(200);

/// Why `shunt status` has no report.
#[derive(Debug, thiserror::Error)]
pub enum NoStatus {
    /// No agent runs in this network namespace.
    #[error("no shunt runs in this network namespace")]
    NoAgent,
    /// The agent accepts connections, but does not answer.
    #[error("shunt (process {0}) did not answer within {TIMEOUT:?}: it hangs")]
    Silent(i32),
    /// The agent does not accept connections.
    #[error("shunt did not accept a connection within {TIMEOUT:?}: it hangs")]
    Deaf,
    /// A process that must not run an agent has the socket.
    #[error("process {process} of user {user} has the socket of shunt, but may not run it; end it")]
    Impostor {
        /// The process ID, or 0 if it is not visible.
        process: i32,
        /// The user ID of the process.
        user: u32,
    },
    /// The user of this process may not ask.
    #[error("shunt (process {0}) reports its status only to root; run shunt status as root")]
    Refused(i32),
    /// The answer is not JSON of this version.
    #[error(
        "the status of shunt (process {process}) is of another version: {reason}; use its own binary"
    )]
    Unreadable {
        /// The process ID of the agent.
        process: i32,
        /// The error of the JSON parser.
        reason: serde_json::Error,
    },
    /// A system call failed.
    #[error("cannot connect to shunt: {0}")]
    System(io::Error),
}

impl From<io::Error> for NoStatus {
    fn from(error: io::Error) -> NoStatus {
        NoStatus::System(error)
    }
}

/// Answers the clients of this listener, for ever.
pub fn serve(listener: &UnixListener, status: impl Fn() -> Status) {
    loop {
        let told = listener.accept().and_then(|(stream, _)| tell(stream, &status));
        if let Err(error) = told {
            tracing::debug!(%error, "cannot answer a client of shunt status");
            // Without file descriptors the next attempt would fail as fast.
            std::thread::sleep(RETRY);
        }
    }
}

fn tell(mut stream: UnixStream, status: impl Fn() -> Status) -> io::Result<()> {
    if Peer::of(&stream)?.is_trusted() {
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(serde_json::to_string(&status())?.as_bytes())?;
    }
    Ok(())
}

/// Asks the agent of this network namespace.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask() -> Result<Status, NoStatus> {
    let (mut stream, agent) = match connect_to_agent(TIMEOUT) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(NoStatus::NoAgent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoStatus::Deaf),
        Err(error) => return Err(error.into()),
    };
    let process = agent.process;
    if !agent.is_trusted() {
        return Err(NoStatus::Impostor { process, user: agent.user.as_raw() });
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
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
    // In its container the agent has another process ID.
    if let Ok(visible @ 1..) = u32::try_from(process) {
        status.process = visible;
    }
    Ok(status)
}
