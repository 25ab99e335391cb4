//! Statistics of transactions.

use std::time::Duration;

use nfnetlink::nft::{Error, FinishedBatch, Kernel};

use super::refusal::is_about_affinity;
use super::stopwatch::Stopwatch;

/// The transactions since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The whole plan was computed or the kernel was read, beyond the changes.
    pub full: bool,
    /// The duration of planning, comparison and commit.
    pub took: Duration,
    /// The committed transactions.
    pub commits: Vec<Commit>,
    /// The number of transactions made again after a modification by another process.
    pub overtaken: u64,
    /// The number of transactions that the kernel refused for other reasons.
    pub refused: u64,
}

/// A committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The size in bytes.
    pub bytes: usize,
    /// The duration of the commit in the kernel.
    pub took: Duration,
}

impl CommitStats {
    /// Returns true if there were transactions, committed or refused.
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
