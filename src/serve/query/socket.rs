//! The abstract socket between the agent and the commands that ask it.
//!
//! Any process of the network namespace can connect, so the user of a client proves nothing: a
//! container may have user 0 without a capability. The agent drops a client at once that does not prove
//! CAP_NET_ADMIN, the capability to change the rules, by the name it connects from ([`Proof`]). The
//! client sends one line of JSON, a [`Question`], and gets the answer as JSON.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::{Objects, Question, Selection};
use crate::serve::presence::{Peer, Proof, connect_to_agent, is_proved};
use crate::serve::status::Status;

/// The timeout of the agent for writing the answer, and of the command for reading it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take for its whole question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum length of a question in bytes.
const MAX_QUESTION: u64 = 64 * 1024;
/// The pause after a client that the agent could not accept.
const RETRY: Duration = Duration::from_millis(200);

/// The version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No agent runs in this network namespace.
    #[error("shunt is not running in this network namespace")]
    NoAgent,
    /// Any other reason, as a sentence.
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        NoAnswer::Other(format!("cannot connect to shunt: {error}"))
    }
}

/// Answers the clients of this listener with JSON, for ever and beside each other.
///
/// # Errors
/// If the system refuses what a runtime needs.
pub fn serve(
    listener: UnixListener,
    answer: impl Fn(&Question) -> serde_json::Result<Vec<u8>> + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    listener.set_nonblocking(true)?;
    let answer = Rc::new(answer);
    LocalSet::new().block_on(&runtime, async move {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                // The others get no place, so that they cannot take one.
                Ok((stream, _)) if !is_proved(&stream).unwrap_or(false) => drop(stream),
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    tokio::task::spawn_local(async move {
                        if let Err(error) = serve_one(stream, &*answer).await {
                            tracing::debug!(%error, "cannot answer a command");
                        }
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a command");
                    // Without file descriptors the next attempt would fail as fast.
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    })
}

async fn serve_one(
    mut stream: tokio::net::UnixStream,
    answer: &dyn Fn(&Question) -> serde_json::Result<Vec<u8>>,
) -> io::Result<()> {
    let mut question = String::new();
    let mut reader = tokio::io::BufReader::new(&mut stream).take(MAX_QUESTION);
    let read = timeout(QUESTION_TIMEOUT, reader.read_line(&mut question)).await;
    read.map_err(|_| io::ErrorKind::TimedOut)??;
    // A newer command may have questions that are unknown here. The status has the version, which
    // the command names.
    let question = serde_json::from_str(&question).unwrap_or(Question::Status);
    let answer = answer(&question)?;
    timeout(TIMEOUT, stream.write_all(&answer)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Asks the agent of this network namespace for its status. Also returns true if its process is
/// visible here, which those in other containers are not.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_status() -> Result<(Status, bool), NoAnswer> {
    let (mut status, process) = ask(&Question::Status)?;
    see_process(&mut status, process);
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

/// Asks the agent of this network namespace for objects with their whole history.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask_history(selection: Selection) -> Result<Objects, NoAnswer> {
    let (mut objects, process): (Objects, i32) = ask(&Question::History(selection))?;
    see_process(&mut objects.status, process);
    Ok(objects)
}

/// Sets the process ID that is visible here: in its container the agent has another one.
fn see_process(status: &mut Status, process: i32) {
    if let Ok(visible @ 1..) = u32::try_from(process) {
        status.process = visible;
    }
}

/// Returns the answer and the process ID of the agent.
fn ask<T: DeserializeOwned>(question: &Question) -> Result<(T, i32), NoAnswer> {
    let proof = Proof::give();
    let connected = match &proof {
        Ok(proof) => proof.connect(TIMEOUT),
        Err(_) => connect_to_agent(TIMEOUT),
    };
    let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let (mut stream, agent) = match connected {
        Ok(found) => found.ok_or(NoAnswer::NoAgent)?,
        Err(error) if would_block(&error) => {
            let text = format!("shunt did not accept a connection within {TIMEOUT:?}: it hangs");
            return Err(NoAnswer::Other(text));
        }
        Err(error) => return Err(error.into()),
    };
    let (process, name) = (agent.process, Peer::name(agent.process));
    let other = |text| Err(NoAnswer::Other(text));
    if !agent.is_trusted() {
        let user = agent.user;
        return other(format!(
            "shunt's socket belongs to a process of user {user} ({name}), and commands ask only \
             agents of root or of their own user; if it is an agent, run this command as user \
             {user}; if not, end the process"
        ));
    }
    // Held until the answer is there.
    let _proof = match proof {
        Ok(proof) => proof,
        Err(reason) => {
            return other(format!(
                "shunt ({name}) answers only to processes with CAP_NET_ADMIN in this network \
                 namespace: {reason}; run this command as root with that capability"
            ));
        }
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(question).map_err(io::Error::from)?;
    line.push(b'\n');
    // The agent may have closed the connection already.
    let _ = stream.write_all(&line);
    let mut json = Vec::new();
    match stream.read_to_end(&mut json) {
        Err(error) if would_block(&error) => {
            return other(format!("shunt ({name}) did not answer within {TIMEOUT:?}: it hangs"));
        }
        // It may have closed the connection with the question unread.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        result => _ = result?,
    }
    if json.is_empty() {
        return other(format!(
            "shunt ({name}) closed the connection without an answer: it is stopping, or does not \
             know this command's question (version {OWN}); try again, or run the command with the \
             agent's own binary"
        ));
    }
    Ok((read(&json, &name)?, process))
}

/// Reads an answer of the agent of that name.
fn read<T: DeserializeOwned>(json: &[u8], name: &str) -> Result<T, NoAnswer> {
    serde_json::from_slice(json).map_err(|reason| {
        // The status alone, or beside what was asked for.
        let value: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        let version = value.get("version").or_else(|| value.get("status")?.get("version"));
        let version = version.and_then(|version| version.as_str()).unwrap_or("unknown");
        NoAnswer::Other(format!(
            "cannot read the answer of shunt ({name}, version {version}) with this command \
             (version {OWN}): {reason}; run the command with the agent's own binary, for example \
             in its container"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_answer_names_both_versions() {
        for answer in [r#"{"version":"0.9.9"}"#, r#"{"status":{"version":"0.9.9"}}"#] {
            let error = read::<Objects>(answer.as_bytes(), "process 7").unwrap_err().to_string();
            assert!(error.contains("process 7, version 0.9.9"), "{error}");
            assert!(error.contains(&format!("this command (version {OWN})")), "{error}");
        }
        let error = read::<Objects>(b"no JSON", "process 7").unwrap_err().to_string();
        assert!(error.contains("version unknown"), "{error}");
    }
}
