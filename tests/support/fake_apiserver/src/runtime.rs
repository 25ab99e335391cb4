//! A thread with an asynchronous runtime, for a server that a test talks to without.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// It ends, with all that runs in it, when it is dropped.
pub(crate) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Runs `work` in a thread of this name.
    pub(crate) fn start(
        name: &str,
        work: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = work => {}
                    _ = stopped => {}
                }
            });
            // Work in threads of its own may wait for what never comes.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Makes something that belongs to the runtime.
    pub(crate) fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }

    /// Waits for something from outside of the runtime.
    pub(crate) fn wait<T, E: Into<anyhow::Error>>(
        &self,
        patience: Duration,
        event: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let waited = self.handle.block_on(async { tokio::time::timeout(patience, event).await });
        waited.with_context(|| format!("not within {patience:?}"))?.map_err(Into::into)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
