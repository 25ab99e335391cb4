//! What happened, and whether it was as it should be.

use anyhow::{Result, ensure};
use shunt_testbed::Delivered;

use crate::churn::SORTS;
use crate::disturbances::{Counts, KINDS};

/// So much more memory at the end of a run than in its middle is still flat: allocators keep what they
/// have had.
const FLAT: u64 = 8_000_000;
/// With less than this, memory was not looked at for long enough to judge it.
const SAMPLES: usize = 10;
/// More bytes than the agent of the longest soak has ever needed at once.
const LARGEST: u64 = 150_000_000;
/// So many differences are printed.
const SHOWN: usize = 20;

/// The memory of a process, in bytes, looked at again and again.
#[derive(Debug)]
pub(crate) struct Growth {
    samples: usize,
    /// The medians of the second quarter of that time, and of the last.
    early: u64,
    late: u64,
    largest: u64,
}

impl Growth {
    pub(crate) fn of(samples: &[u64]) -> Self {
        let quarter = |n: usize| &samples[samples.len() * n / 4..samples.len() * (n + 1) / 4];
        Self {
            samples: samples.len(),
            early: median(quarter(1)),
            late: median(quarter(3)),
            largest: samples.iter().copied().max().unwrap_or_default(),
        }
    }

    fn verdict(&self) -> Result<()> {
        let Self { samples, early, late, largest } = self;
        ensure!(*samples >= SAMPLES, "only {samples} samples of the agent's memory");
        ensure!(*late < early + FLAT, "the agent grows: {self:?}");
        ensure!(*largest < LARGEST, "the agent needed {largest} bytes");
        Ok(())
    }
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The end of a soak.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) changes: Counts,
    pub(crate) happened: Counts,
    pub(crate) commits: f64,
    pub(crate) delivered: Delivered,
    pub(crate) growth: Growth,
    /// Between the kernel and what a fresh start makes.
    pub(crate) differences: Vec<String>,
}

impl Report {
    /// Fails unless all was well.
    pub(crate) fn verdict(&self) -> Result<()> {
        self.delivered.all()?;
        ensure!(self.changes.len() == SORTS, "not all sorts of changes: {:?}", self.changes);
        ensure!(self.happened.len() == KINDS, "not all disturbances: {:#?}", self.happened);
        // Batches can hold many changes, but those of a second do not wait for each other.
        ensure!(self.commits >= 10.0, "only {} transactions", self.commits);
        ensure!(
            self.differences.is_empty(),
            "the kernel does not hold what is planned: {:#?}",
            &self.differences[..self.differences.len().min(SHOWN)]
        );
        self.growth.verdict()
    }
}
