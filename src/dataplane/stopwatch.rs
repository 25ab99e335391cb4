//! How long work takes.
//!
//! Decisions take the time as an argument. What they cost is measured with this, so that tests can make
//! up both.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Measures work of the thread that commits.
pub trait Stopwatch: Send {
    /// The time since some moment in the past, which stays the same.
    fn elapsed(&self) -> Duration;

    /// The processor time of this thread: a busy machine makes work longer, but not dearer.
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
