//! A blocking sync, for `--once` and tests.

use std::time::Instant;

use nfnetlink::nft::Error;

use super::{Dataplane, Progress, SyncReport};

impl Dataplane {
    /// Commits the plan of the known objects. Waits, less than a second, until a listing can be
    /// trusted. Returns `None` if there was nothing to write.
    ///
    /// # Errors
    /// Nothing was written then; the next sync handles the difference.
    pub fn sync(&mut self) -> Result<Option<SyncReport>, Error> {
        loop {
            match self.reconcile(Instant::now(), &mut |_, _| {})? {
                Progress::Unchanged => return Ok(None),
                Progress::Wrote(report) => return Ok(Some(report)),
                Progress::ReadAgain(at) => {
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                }
            }
        }
    }
}
