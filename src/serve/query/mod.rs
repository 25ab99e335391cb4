//! Questions of commands to the running agent of a network namespace.
//!
//! Owns: the [`Question`]s, the form of their answers, and the socket between agent and command.
//! The thread that answers is not the dataplane's: a question never delays a commit, and gets an
//! answer even if the dataplane hangs.

mod excerpt;
mod socket;

use serde::{Deserialize, Serialize};
use shunt_core::model::{Change, Dirty, Store};
use shunt_core::plan::{Desired, Options};

use crate::serve::history::What;
use crate::serve::status::{Status, Time};

pub use excerpt::{Excerpt, Selection};
pub use socket::{NoAnswer, ask_history, ask_objects, ask_refresh, ask_status, serve};

/// A question to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// The state of the agent: a [`Status`].
    Status,
    /// [`Objects`] as of the last sync, with the state of the agent.
    Objects(Selection),
    /// The same with their whole history.
    History(Selection),
    /// The same as a [`Refresh`], for a reader that has the objects of this revision.
    Refresh(Selection, u64),
}

/// Objects of the agent, with what a plan of them depends on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    /// The state of the agent.
    pub status: Status,
    /// The options of the plan.
    pub options: Options,
    /// The objects.
    pub excerpt: Excerpt,
}

/// The state of the agent, with objects if the reader has those of another revision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refresh {
    /// The state of the agent.
    pub status: Status,
    /// The options of the plan.
    pub options: Options,
    /// The objects; `None` if the reader has them.
    pub excerpt: Option<Excerpt>,
}

impl Objects {
    /// Updates the objects. Returns true if a plan of them may differ, and `None` if another agent
    /// answers, whose revisions are others.
    #[must_use]
    pub fn refresh(&mut self, refresh: Refresh) -> Option<bool> {
        let Refresh { status, options, excerpt } = refresh;
        if status.started != self.status.started && excerpt.is_none() {
            return None;
        }
        let differs =
            excerpt.is_some() || options != self.options || status.node != self.status.node;
        let excerpt = excerpt.unwrap_or_else(|| std::mem::take(&mut self.excerpt));
        *self = Objects { status, options, excerpt };
        Some(differs)
    }

    /// Rebuilds the store, with all that is to be planned.
    #[must_use]
    pub fn store(&self) -> (Store, Dirty) {
        let (mut store, mut dirty) = (Store::new(), Dirty::default());
        for change in &self.excerpt.changes {
            store.apply(change.clone(), &mut dirty);
        }
        (store, dirty)
    }

    /// Makes the objects those of an earlier time.
    pub fn rewind(&mut self, to: Time) {
        let Excerpt { changes, history, .. } = &mut self.excerpt;
        for entry in history.drain(..).rev().take_while(|entry| entry.at > to) {
            let What::Changed(before, _) = &entry.what else { continue };
            let is_of_node = |change: &Change| matches!(change, Change::Node(_) | Change::NodeGone);
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::serve::status::Time;

    fn objects(started: u64, revision: u64) -> Objects {
        let started = Time(SystemTime::UNIX_EPOCH + Duration::from_secs(started));
        let status = Status { started, ..Status::default() };
        Objects {
            status,
            excerpt: Excerpt { revision, ..Excerpt::default() },
            ..Objects::default()
        }
    }

    fn refresh(answer: Objects, has_objects: bool) -> Refresh {
        let Objects { status, options, excerpt } = answer;
        Refresh { status, options, excerpt: has_objects.then_some(excerpt) }
    }

    #[test]
    fn refresh_keeps_objects_of_the_same_agent_only() {
        let mut known = objects(1, 5);
        assert_eq!(known.refresh(refresh(objects(1, 0), false)), Some(false));
        assert_eq!(known, objects(1, 5));
        assert_eq!(known.refresh(refresh(objects(1, 6), true)), Some(true));
        assert_eq!(known, objects(1, 6));
        assert_eq!(known.refresh(refresh(objects(2, 0), false)), None);
        assert_eq!(known.refresh(refresh(objects(2, 1), true)), Some(true));
        assert_eq!(known, objects(2, 1));
    }

    #[test]
    fn changed_options_need_another_plan() {
        let mut known = objects(1, 5);
        let mut changed = refresh(objects(1, 0), false);
        changed.options.masquerade_all = true;
        assert_eq!(known.refresh(changed), Some(true));
        assert_eq!(known.excerpt.revision, 5);
    }
}
