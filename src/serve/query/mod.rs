//! Questions of commands to the running agent of a network namespace.
//!
//! Owns: the [`Question`], the form of the answer, and the socket between agent and command.
//! The thread that answers is not the dataplane's: a question never delays a commit, and gets an
//! answer even if the dataplane hangs.

mod selection;
mod socket;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shunt_core::model::{Change, Dirty, Kind, Store};
use shunt_core::plan::{Desired, Options};

use crate::serve::history::{HistoryEntry, What};
use crate::serve::status::{AgentStatus, Time};

pub use selection::Selection;
pub use socket::{NoAnswer, ask, serve};

/// A question to the agent: [`Objects`] as of the last sync.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The objects.
    pub selection: Selection,
    /// With their whole history.
    pub whole_history: bool,
}

/// Objects of the agent, with what a plan of them depends on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    /// The state of the agent.
    pub status: AgentStatus,
    /// The options of the plan.
    pub options: Options,
    /// The number of successful syncs that brought changes (see `Snapshot`).
    pub revision: u64,
    /// The changes that rebuild the objects in an empty store.
    pub changes: Vec<Change>,
    /// How far back the history reaches.
    pub since: Time,
    /// What changed, the oldest first: all that is known if the history is asked for, a few of the
    /// latest changes of one Service or address otherwise.
    pub history: Vec<Arc<HistoryEntry>>,
}

impl Objects {
    /// Rebuilds the store, with all that is to be planned.
    #[must_use]
    pub fn store(&self) -> (Store, Dirty) {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        for change in &self.changes {
            store.apply(change.clone(), &mut dirty);
        }
        (store, dirty)
    }

    /// Makes the objects those of an earlier time.
    pub fn rewind(&mut self, to: Time) {
        let Objects { changes, history, .. } = self;
        for entry in history.drain(..).rev().take_while(|entry| entry.at > to) {
            let What::Changed(before, _) = &entry.what else { continue };
            let is_of_node =
                |change: &Change| matches!(change, Change::Node(_) | Change::Gone(Kind::Node, _));
            if is_of_node(before) {
                // A store completes a Node by what it knew of it.
                changes.retain(|change| !is_of_node(change));
            }
            changes.push(before.clone());
        }
    }

    /// Rebuilds the store and plans it, exactly as the agent does.
    #[must_use]
    pub fn planned(&self) -> (Store, Desired) {
        let (store, dirty) = self.store();
        let mut desired = Desired::new(self.options.clone(), &self.status.node);
        desired.update(&store, &dirty);
        (store, desired)
    }
}
