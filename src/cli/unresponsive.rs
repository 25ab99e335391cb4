//! Starts the search for endpoints that do not answer, and connects it with the rest of the agent.

use anyhow::Context;
use clap::ValueEnum;
use nfnetlink::nft::Socket;
use shunt_core::model::{Family, placements};

use crate::dataplane::{Command, Commands};
use crate::directory::Directory;
use crate::metrics::Metrics;
use crate::status::AgentState;
use crate::unresponsive::{EndpointState, Inputs, Mode, remove_tables, spawn};

/// The parts of the agent that the search uses.
pub(super) struct Finding<'a> {
    pub(super) families: &'a [Family],
    pub(super) known: &'a AgentState,
    pub(super) directory: &'a Directory,
    pub(super) commands: &'a Commands,
    pub(super) metrics: &'a Metrics,
}

/// Starts the search, unless it is off.
pub(super) fn find_unresponsive(mode: Mode, parts: &Finding<'_>) -> anyhow::Result<()> {
    let Finding { families, known, directory, commands, metrics } = *parts;
    let word = mode.to_possible_value();
    known.eject(word.as_ref().map_or("", |word| word.get_name()));
    if mode == Mode::Off {
        // On kernels before 5.12, the tables of an earlier agent may be left.
        match Socket::open().and_then(|mut socket| remove_tables(&mut socket)) {
            Ok(0) => {}
            Ok(tables) => tracing::info!(tables, "removed the tables for unresponsive endpoints"),
            Err(error) => {
                tracing::warn!(%error, "cannot remove the tables for unresponsive endpoints");
            }
        }
        return Ok(());
    }
    let placements_of = {
        let (known, directory) = (known.clone(), directory.clone());
        move |wanted: &_| match known.node_context() {
            Some(context) => directory.read(|store| placements(store, context.locality(), wanted)),
            None => Default::default(),
        }
    };
    let eject = {
        let commands = commands.clone();
        move |endpoints: Vec<_>| {
            // The dataplane ends only with the process.
            let _ = commands.send(Command::Eject(endpoints.into_iter().collect()));
        }
    };
    let report = {
        let (known, metrics) = (known.clone(), metrics.clone());
        move |found: Result<Vec<_>, _>| {
            let all = found.as_ref().map(Vec::as_slice).unwrap_or_default();
            let is_unresponsive =
                |it: &&crate::unresponsive::EndpointReport| it.state != EndpointState::Suspected;
            metrics.unresponsive(all.iter().filter(is_unresponsive).count());
            known.unresponsive(found);
        }
    };
    spawn(Inputs {
        mode,
        families: families.to_vec(),
        placements: Box::new(placements_of),
        eject: Box::new(eject),
        report: Box::new(report),
    })
    .context("cannot start the thread \"unresponsive\"")
}
