//! A sync for those that have nothing to do meanwhile.

use std::time::Instant;

use super::{Dataplane, Error, Progress, SyncReport};

impl Dataplane {
    /// Brings the kernel up to the objects that are known, and waits as long as what it lists cannot be
    /// trusted: less than a second. `None` if there was nothing to write.
    ///
    /// # Errors
    /// Nothing was written then; what differs stays noted for the next sync.
    pub fn sync(&mut self) -> Result<Option<SyncReport>, Error> {
        loop {
            match self.reconcile(Instant::now())? {
                Progress::Unchanged => return Ok(None),
                Progress::Wrote(report) => return Ok(Some(report)),
                Progress::ReadAgain(at) => {
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                }
            }
        }
    }
}
