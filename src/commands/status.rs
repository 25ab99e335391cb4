//! `shunt status`: shows the state of the running agent.

use anyhow::anyhow;

use super::args::Status as Arguments;
use crate::agent::Failure;
use crate::serve::query::{Selection, ask};
use crate::serve::status::AgentStatus;

/// Requests the agent's status and prints it. Fails if the agent has problems.
pub(super) fn status(arguments: &Arguments) -> Result<(), Failure> {
    arguments.here.enter()?;
    let (objects, is_own) = ask(Selection::Nothing, false).map_err(anyhow::Error::from)?;
    let status = objects.status;
    if arguments.startup_probe {
        return startup_probe(&status, is_own);
    }
    super::output(arguments.output, &status)?;
    if status.problems.is_empty() { Ok(()) } else { Err(Failure::Result(super::PROBLEMS)) }
}

/// Fails unless the agent of this container has programmed the rules. It may wait for the end of
/// another container's agent, which then answers in its place.
fn startup_probe(status: &AgentStatus, is_own: bool) -> Result<(), Failure> {
    if !is_own {
        let why = "the agent of another container programs the rules; this one waits for its end";
        return Err(anyhow!(why).into());
    }
    if status.rules.last_sync.is_none() {
        return Err(anyhow!("nothing has been programmed yet").into());
    }
    Ok(super::print("the agent has programmed the rules\n")?)
}
