//! What became of transactions.

use std::time::{Duration, Instant};

use nfnetlink::nft::{Error, FinishedBatch, Kernel};

use super::sync::is_about_affinity;

/// What became of transactions since the last time that somebody asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Everything was planned again or read back from the kernel, not only what changed.
    pub full: bool,
    /// The transactions that the kernel took.
    pub commits: Vec<Commit>,
    /// How many were made again from a new reading, because another process had changed our tables.
    pub overtaken: u64,
    /// How many it refused for other reasons.
    pub refused: u64,
}

/// A transaction that the kernel took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Its size.
    pub bytes: usize,
    /// How long the kernel took for it.
    pub took: Duration,
}

impl Tally {
    /// Has a transaction committed, and counts it.
    pub(super) fn commit(
        &mut self,
        kernel: &mut dyn Kernel,
        batch: &FinishedBatch,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let result = kernel.commit(batch);
        match &result {
            Ok(()) => {
                let commit = Commit { bytes: batch.bytes().len(), took: started.elapsed() };
                self.commits.push(commit);
            }
            // An entry expired and was stored anew while it was to be deleted.
            Err(Error::Refused(refusals)) if refusals.iter().all(is_about_affinity) => {}
            Err(_) => self.refused += 1,
        }
        result
    }
}
