//! Measures the cost of work.
//!
//! Decisions take the time as an argument, and measure their cost with a stopwatch. So tests can
//! replace both.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// A stopwatch for the thread that commits.
pub trait Stopwatch: Send {
    /// Returns the time since a fixed moment in the past.
    fn elapsed(&self) -> Duration;

    /// Returns the processor time of this thread, which does not grow while other processes run.
    fn processor_time(&self) -> Duration;
}

/// The system's clocks.
#[derive(Debug)]
pub(super) struct SystemClocks(Instant);

impl SystemClocks {
    pub(super) fn new() -> SystemClocks {
        SystemClocks(Instant::now())
    }
}

impl Stopwatch for SystemClocks {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn processor_time(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
    }
}
