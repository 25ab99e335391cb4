//! What became of transactions.

use std::time::Duration;

use nfnetlink::nft::{Error, FinishedBatch, Kernel};

use super::refusal::is_about_affinity;
use super::stopwatch::Stopwatch;

/// What became of transactions since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Everything was planned again or read back from the kernel, not only what changed.
    pub full: bool,
    /// How long planning, comparing and committing took.
    pub took: Duration,
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

impl CommitStats {
    /// True if there were any, taken by the kernel or not.
    pub(super) fn has_transactions(&self) -> bool {
        !self.commits.is_empty() || self.refused + self.overtaken > 0
    }

    /// Commits a transaction and counts it.
    pub(super) fn commit(
        &mut self,
        kernel: &mut dyn Kernel,
        stopwatch: &dyn Stopwatch,
        batch: &FinishedBatch,
    ) -> Result<(), Error> {
        let started = stopwatch.elapsed();
        let result = kernel.commit(batch);
        match &result {
            Ok(()) => {
                let commit = Commit {
                    bytes: batch.bytes().len(),
                    took: stopwatch.elapsed().saturating_sub(started),
                };
                self.commits.push(commit);
            }
            // An entry expired and was stored anew while it was to be deleted.
            Err(Error::Refused(refusals)) if refusals.iter().all(is_about_affinity) => {}
            Err(_) => self.refused += 1,
        }
        result
    }
}
