//! The abstract socket between the agent and the commands that ask it.
//!
//! Any process of the network namespace can connect, so the user of a client proves nothing: a
//! container may have user 0 without a capability. The agent drops a client at once that does not prove
//! CAP_NET_ADMIN, the capability to change the rules, by the name it connects from ([`Proof`]). The
//! client sends one line of JSON, a [`Question`], and gets the answer as JSON.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use super::{Objects, Question, Selection};
use crate::serve::presence::{Proof, is_proved, name_of};

/// The timeout of the agent for writing the answer, and of the command for reading it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take for its question.
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
pub fn serve(
    listener: &UnixListener,
    answer: impl Fn(&Question) -> serde_json::Result<Vec<u8>> + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    loop {
        let accepted = listener.accept().and_then(|(stream, _)| {
            // The others get no thread, so that they cannot take one.
            if is_proved(&stream).unwrap_or(false) {
                let answer = answer.clone();
                let client = std::thread::Builder::new().name("status client".to_owned());
                client.spawn(move || {
                    if let Err(error) = serve_one(&stream, &*answer) {
                        tracing::debug!(%error, "cannot answer a command");
                    }
                })?;
            }
            Ok(())
        });
        if let Err(error) = accepted {
            tracing::debug!(%error, "cannot accept a command");
            // Without file descriptors the next attempt would fail as fast.
            std::thread::sleep(RETRY);
        }
    }
}

fn serve_one(
    mut stream: &UnixStream,
    answer: impl Fn(&Question) -> serde_json::Result<Vec<u8>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(QUESTION_TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut question = String::new();
    BufReader::new(stream).take(MAX_QUESTION).read_line(&mut question)?;
    // A newer command may have questions that are unknown here. The status has the version, which
    // the command names.
    stream.write_all(&answer(&serde_json::from_str(&question).unwrap_or_default())?)
}

/// Asks the agent of this network namespace for objects, with their whole history if it is wanted, and
/// for its status. Also returns true if its process is visible here, which those in other containers
/// are not.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask(selection: Selection, whole_history: bool) -> Result<(Objects, bool), NoAnswer> {
    let question = Question { selection, whole_history };
    // Held until the answer is there.
    let proof = Proof::give().map_err(|reason| {
        NoAnswer::Other(format!(
            "shunt answers only to processes with CAP_NET_ADMIN in this network namespace: {reason}; \
             run this command as root with that capability"
        ))
    })?;
    let would_block = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let (mut stream, process) = match proof.connect(TIMEOUT) {
        Ok(found) => found.ok_or(NoAnswer::NoAgent)?,
        Err(error) if would_block(&error) => {
            let text = format!("shunt did not accept a connection within {TIMEOUT:?}: it hangs");
            return Err(NoAnswer::Other(text));
        }
        Err(error) => return Err(error.into()),
    };
    let name = name_of(process);
    let other = |text| Err(NoAnswer::Other(text));
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(&question).map_err(io::Error::from)?;
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
    let mut objects = read(&json, &name)?;
    // In its container the agent has another ID.
    let visible = u32::try_from(process).ok().filter(|process| *process > 0);
    objects.status.process = visible.unwrap_or(objects.status.process);
    objects.status.judge();
    Ok((objects, visible.is_some()))
}

/// Reads an answer of the agent of that name.
fn read(json: &[u8], name: &str) -> Result<Objects, NoAnswer> {
    serde_json::from_slice(json).map_err(|reason| {
        let value: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        let version = value["status"]["version"].as_str().unwrap_or("unknown");
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
        let answer = br#"{"status":{"version":"0.9.9"}}"#;
        let error = read(answer, "process 7").unwrap_err().to_string();
        assert!(error.contains("process 7, version 0.9.9"), "{error}");
        assert!(error.contains(&format!("this command (version {OWN})")), "{error}");
        let error = read(b"no JSON", "process 7").unwrap_err().to_string();
        assert!(error.contains("version unknown"), "{error}");
    }
}
