//! The abstract socket between the agent and the commands that ask it.
//!
//! A client that connects sends one line of JSON, a [`Question`]. It gets the answer as JSON, if it
//! is root or the agent's user. Then the agent closes the connection.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nix::unistd::Uid;
use serde::de::DeserializeOwned;

use super::{Answer, Objects, Question, Refresh};
use crate::directory::Selection;
use crate::presence::{Peer, connect_to_agent};
use crate::status::Status;

/// The timeout of the agent for writing the answer, and of the command for reading it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of the agent for reading the question. A client that sends none gets the status, as
/// a client of an older version expects.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum length of a question in bytes.
const MAX_QUESTION: u64 = 64 * 1024;
/// The number of attempts of a command whose question came too late.
const ATTEMPTS: usize = 3;
/// The pause after a client that the agent could not serve.
const RETRY: Duration = Duration::from_millis(200);

/// The version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
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
    #[error(
        "process {process} of user {user} has the socket of shunt, and only an agent of root or of one's own user \
         is asked; if it is an agent, run this command as user {user}; if not, end the process"
    )]
    Impostor {
        /// The process ID, or 0 if it is not visible.
        process: i32,
        /// The user ID of the process.
        user: u32,
    },
    /// The user of this process may not ask.
    #[error("shunt (process {0}) answers only to root; run this command as root")]
    Refused(i32),
    /// The agent closed the connection, although it answers this user.
    #[error(
        "shunt (process {0}) closed the connection without an answer: it ends, or its version does not \
         know the question of this command (version {OWN}); try again, or run the command with the \
         agent's own binary"
    )]
    Closed(i32),
    /// The answer is not that of this version.
    #[error(
        "cannot read the answer of shunt (process {process}, version {version}) with this command \
         (version {OWN}): {reason}; run the command with the agent's own binary, for example in its \
         container"
    )]
    Unreadable {
        /// The process ID of the agent.
        process: i32,
        /// The version of the agent.
        version: String,
        /// The error of the JSON parser.
        reason: serde_json::Error,
    },
    /// A system call failed.
    #[error("cannot connect to shunt: {0}")]
    System(io::Error),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        NoAnswer::System(error)
    }
}

/// Answers the clients of this listener, for ever.
pub fn serve(listener: &UnixListener, answer: impl Fn(&Question) -> Answer) {
    loop {
        let served = listener.accept().and_then(|(stream, _)| serve_one(stream, &answer));
        if let Err(error) = served {
            tracing::debug!(%error, "cannot answer a command");
            // Without file descriptors the next attempt would fail as fast.
            std::thread::sleep(RETRY);
        }
    }
}

fn serve_one(stream: UnixStream, answer: impl Fn(&Question) -> Answer) -> io::Result<()> {
    if !Peer::of(&stream)?.is_trusted() {
        return Ok(());
    }
    stream.set_read_timeout(Some(QUESTION_TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    let asked = BufReader::new(&stream).take(MAX_QUESTION).read_line(&mut line);
    let question = match asked {
        Ok(0) => Question::Status,
        // A newer command may have questions that are unknown here. The status has the version, which
        // the command names.
        Ok(_) => serde_json::from_str(&line).unwrap_or(Question::Status),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Question::Status,
        Err(error) => return Err(error),
    };
    let mut writer = BufWriter::new(&stream);
    match answer(&question) {
        Answer::Status(status) => serde_json::to_writer(&mut writer, &status)?,
        Answer::Objects(objects) => serde_json::to_writer(&mut writer, &objects)?,
        Answer::Refresh(refresh) => serde_json::to_writer(&mut writer, &refresh)?,
    }
    writer.flush()
}

/// Asks the agent of this network namespace for its status.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_status() -> Result<Status, NoAnswer> {
    let (mut status, process): (Status, i32) = ask(&Question::Status)?;
    see_process(&mut status, process);
    Ok(status)
}

/// Asks the agent of this network namespace for its status. Also returns true if its process is
/// visible here, which those in other containers are not.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_visible() -> Result<(Status, bool), NoAnswer> {
    let (status, process) = ask(&Question::Status)?;
    Ok((status, process > 0))
}

/// Asks the agent of this network namespace for objects, with its status.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_objects(selection: Selection) -> Result<Objects, NoAnswer> {
    let (mut objects, process): (Objects, i32) = ask(&Question::Objects(selection))?;
    see_process(&mut objects.status, process);
    Ok(objects)
}

/// Asks the agent of this network namespace for objects of another revision, with its status.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_refresh(selection: Selection, revision: u64) -> Result<Refresh, NoAnswer> {
    let (mut refresh, process): (Refresh, i32) = ask(&Question::Refresh(selection, revision))?;
    see_process(&mut refresh.status, process);
    Ok(refresh)
}

/// Sets the process ID that is visible here: in its container the agent has another one.
fn see_process(status: &mut Status, process: i32) {
    if let Ok(visible @ 1..) = u32::try_from(process) {
        status.process = visible;
    }
}

/// Returns the answer and the process ID of the agent.
fn ask<T: DeserializeOwned>(question: &Question) -> Result<(T, i32), NoAnswer> {
    repeat_late(|| ask_once(question))
}

/// Repeats an attempt with an answer to another question. On a busy node, a command may not run for
/// longer than [`QUESTION_TIMEOUT`] between connection and question, and the agent sends its status. An
/// agent of an old version always does, without a look at the question.
fn repeat_late<T>(mut attempt: impl FnMut() -> Result<T, NoAnswer>) -> Result<T, NoAnswer> {
    let mut result = attempt();
    for _ in 1..ATTEMPTS {
        match &result {
            Err(NoAnswer::Unreadable { .. }) => result = attempt(),
            _ => break,
        }
    }
    result
}

fn ask_once<T: DeserializeOwned>(question: &Question) -> Result<(T, i32), NoAnswer> {
    let (mut stream, agent) = match connect_to_agent(TIMEOUT) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(NoAnswer::NoAgent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(NoAnswer::Deaf),
        Err(error) => return Err(error.into()),
    };
    let process = agent.process;
    if !agent.is_trusted() {
        return Err(NoAnswer::Impostor { process, user: agent.user.as_raw() });
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(question).map_err(io::Error::from)?;
    line.push(b'\n');
    // The agent may have closed the connection already, because it refuses this user, or has answered.
    let _ = stream.write_all(&line);
    let mut json = Vec::new();
    match stream.read_to_end(&mut json) {
        // It may have closed the connection with the question unread, also after an answer.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(NoAnswer::Silent(process));
        }
        result => _ = result?,
    }
    if json.is_empty() {
        return Err(closed(process));
    }
    Ok((read(&json, process)?, process))
}

/// Explains an agent that closed the connection without an answer.
fn closed(process: i32) -> NoAnswer {
    if Uid::effective().is_root() { NoAnswer::Closed(process) } else { NoAnswer::Refused(process) }
}

/// Reads an answer.
fn read<T: DeserializeOwned>(json: &[u8], process: i32) -> Result<T, NoAnswer> {
    serde_json::from_slice(json).map_err(|reason| {
        // The status alone, or beside what was asked for.
        let value: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        let version = value.get("version").or_else(|| value.get("status")?.get("version"));
        let version = version.and_then(|version| version.as_str()).unwrap_or("unknown").to_owned();
        NoAnswer::Unreadable { process, version, reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_answer_names_both_versions() {
        for answer in [r#"{"version":"0.9.9"}"#, r#"{"status":{"version":"0.9.9"}}"#] {
            let error = read::<Objects>(answer.as_bytes(), 7).unwrap_err().to_string();
            assert!(error.contains("process 7, version 0.9.9"), "{error}");
            assert!(error.contains(&format!("this command (version {OWN})")), "{error}");
        }
        let error = read::<Objects>(b"no JSON", 7).unwrap_err().to_string();
        assert!(error.contains("version unknown"), "{error}");
    }

    #[test]
    fn unknown_question_gets_the_status() -> io::Result<()> {
        let (mut client, agent) = UnixStream::pair()?;
        client.write_all(b"{\"somethingNew\":1}\n")?;
        serve_one(agent, |question| {
            assert_eq!(*question, Question::Status);
            Answer::Status(Box::new(Status { node: "node-1".to_owned(), ..Status::default() }))
        })?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        assert!(answer.contains("node-1"), "{answer}");
        Ok(())
    }

    #[test]
    fn late_question_is_asked_again() {
        let late = || Err(read::<Objects>(br#"{"version":"0.0.1"}"#, 7).unwrap_err());
        let mut attempts = 0;
        let result = repeat_late(|| {
            attempts += 1;
            if attempts < ATTEMPTS { late() } else { Ok(attempts) }
        });
        assert_eq!(result.ok(), Some(ATTEMPTS));
        let mut attempts = 0;
        let result: Result<usize, NoAnswer> = repeat_late(|| {
            attempts += 1;
            late()
        });
        assert!(matches!(result, Err(NoAnswer::Unreadable { .. })) && attempts == ATTEMPTS);
        let mut attempts = 0;
        let result: Result<usize, NoAnswer> = repeat_late(|| {
            attempts += 1;
            Err(NoAnswer::Deaf)
        });
        assert!(matches!(result, Err(NoAnswer::Deaf)) && attempts == 1);
    }
}
