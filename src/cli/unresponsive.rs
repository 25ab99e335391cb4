//! The search for endpoints that do not answer, connected with the rest of the agent.

use std::sync::Arc;

use nfnetlink::nft::Socket;
use shunt_core::model::{Family, placements};

use crate::dataplane::{Command, Commands};
use crate::directory::Directory;
use crate::metrics::Metrics;
use crate::status::AgentState;
use crate::unresponsive::{EndpointReport, EndpointState, Inputs, Mode, Search, remove_tables};

/// The parts of the agent that the search uses.
pub(super) struct Parts<'a> {
    pub(super) families: &'a [Family],
    pub(super) known: &'a AgentState,
    pub(super) directory: &'a Directory,
    pub(super) commands: &'a Commands,
    pub(super) metrics: &'a Metrics,
}

/// The search, with its mode in the agent's state.
pub(super) struct Finder {
    search: Search,
    known: AgentState,
}

impl Finder {
    /// Starts the search, unless it is off.
    pub(super) fn start(mode: Mode, parts: &Parts<'_>) -> Finder {
        if mode == Mode::Off {
            // On kernels before 5.12, the tables of an earlier agent may be left.
            match Socket::open().and_then(|mut socket| remove_tables(&mut socket)) {
                Ok(0) => {}
                Ok(tables) => {
                    tracing::info!(tables, "removed the tables for unresponsive endpoints");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot remove the tables for unresponsive endpoints");
                }
            }
        }
        let search = Search::new(inputs(parts));
        let mut finder = Finder { search, known: parts.known.clone() };
        finder.set(mode);
        finder
    }

    /// Changes the mode.
    pub(super) fn set(&mut self, mode: Mode) {
        self.known.eject(mode.name());
        if let Err(error) = self.search.set(mode) {
            let reason = format!("cannot start the thread \"unresponsive\": {error}");
            tracing::error!("{reason}; endpoints that do not answer are not found");
            self.known.unresponsive(Err(reason));
        }
    }
}

fn inputs(parts: &Parts<'_>) -> Inputs {
    let Parts { families, known, directory, commands, metrics } = *parts;
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
            let is_unresponsive = |it: &&EndpointReport| it.state != EndpointState::Suspected;
            metrics.unresponsive(all.iter().filter(is_unresponsive).count());
            known.unresponsive(found);
        }
    };
    Inputs {
        families: families.to_vec(),
        placements: Arc::new(placements_of),
        eject: Arc::new(eject),
        report: Arc::new(report),
    }
}
