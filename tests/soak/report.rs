//! What happened, and whether it was as it should be.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Result, ensure};
use shunt_testbed::Delivered;

use crate::churn::Changes;
use crate::disturbances::{Happened, KINDS};

/// So much more memory at the end of a run than in its middle is still flat: allocators keep what they
/// have had.
const FLAT: i64 = 8_000_000;
/// With less than this, memory was not looked at for long enough to judge it.
const SAMPLES: usize = 10;
/// More bytes than the agent of the longest soak has ever needed at once.
const LARGEST: u64 = 150_000_000;
/// So many differences are printed.
const SHOWN: usize = 20;

/// The memory of a process at one time.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Since its start.
    pub(crate) after: Duration,
    /// Bytes.
    pub(crate) resident: u64,
}

/// How the memory of a process developed.
#[derive(Default)]
pub(crate) struct Growth {
    samples: usize,
    /// For how long it was looked at.
    lasted: Duration,
    /// Bytes: the median of the second quarter of that time, and of the last.
    early: u64,
    late: u64,
    largest: u64,
    /// Bytes in a minute, by least squares over all but the first quarter.
    slope: f64,
}

impl Growth {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let quarter = |n: usize| &samples[samples.len() * n / 4..samples.len() * (n + 1) / 4];
        let settled = &samples[samples.len() / 4..];
        Self {
            samples: samples.len(),
            lasted: samples.last().map(|last| last.after).unwrap_or_default(),
            early: median(quarter(1)),
            late: median(quarter(3)),
            largest: samples.iter().map(|sample| sample.resident).max().unwrap_or_default(),
            slope: slope(settled),
        }
    }

    fn grown(&self) -> i64 {
        self.late as i64 - self.early as i64
    }

    fn verdict(&self) -> Result<()> {
        let Self { samples, largest, slope, .. } = self;
        ensure!(*samples >= SAMPLES, "only {samples} samples of the agent's memory");
        ensure!(self.grown() < FLAT, "the agent grows: {} bytes", self.grown());
        ensure!(*largest < LARGEST, "the agent needed {largest} bytes");
        // The medians above are half of the time apart.
        let projected = slope * self.lasted.as_secs_f64() / 60.0;
        ensure!(projected < (2 * FLAT) as f64, "the agent grows: {slope:.0} bytes in a minute");
        Ok(())
    }
}

fn median(samples: &[Sample]) -> u64 {
    let mut sorted: Vec<u64> = samples.iter().map(|sample| sample.resident).collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn slope(samples: &[Sample]) -> f64 {
    let count = samples.len().max(1) as f64;
    let minutes = |sample: &Sample| sample.after.as_secs_f64() / 60.0;
    let bytes = |sample: &Sample| sample.resident as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&minutes), mean(&bytes));
    let (mut above, mut below) = (0.0, 0.0);
    for sample in samples {
        above += (minutes(sample) - x) * (bytes(sample) - y);
        below += (minutes(sample) - x).powi(2);
    }
    if below > 0.0 { above / below } else { 0.0 }
}

/// The end of a soak.
pub(crate) struct Report {
    pub(crate) changes: Changes,
    pub(crate) happened: Happened,
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
        let Changes { slices, services, deleted, made, nodes } = self.changes;
        let least = [slices, services, deleted, made, nodes].into_iter().min();
        ensure!(least > Some(0), "not everything was changed: {:?}", self.changes);
        let kinds = self.happened.0.len();
        ensure!(kinds == KINDS, "{kinds} of {KINDS} disturbances: {:#?}", self.happened.0);
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

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<44} {value:>12}");
        let Changes { slices, services, deleted, made, nodes } = &self.changes;
        row("EndpointSlices replaced", slices)?;
        row("Services replaced", services)?;
        row("Services deleted", deleted)?;
        row("Services made anew", made)?;
        row("new labels of the Node", nodes)?;
        for (what, times) in &self.happened.0 {
            row(what, times)?;
        }
        row("transactions of agents that were not killed", &self.commits)?;
        let Delivered { new, kept, failed, .. } = &self.delivered;
        row("new connections and datagrams", new)?;
        row("connections open all the time", kept)?;
        row("of all these failed", failed)?;
        row("differences between kernel and plan", &self.differences.len())?;
        let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
        let Growth { lasted, early, late, largest, slope, .. } = &self.growth;
        row("the last agent ran for", &format!("{:.0} s", lasted.as_secs_f64()))?;
        row("its RSS, second quarter", &megabytes(*early as f64))?;
        row("its RSS, last quarter", &megabytes(*late as f64))?;
        row("its largest RSS", &megabytes(*largest as f64))?;
        row("slope, per minute", &megabytes(*slope))
    }
}
