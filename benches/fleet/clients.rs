//! Many clients in one thread.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt::source::kubernetes::{Access, ContentType, Dialer, ObservedRequest, Source};
use shunt_core::model::Change;
use shunt_fake_apiserver::{Kubeconfig, TOKEN};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::beside::Cluster;

const POLL: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Counters {
    /// Clients that have all lists.
    synced: AtomicUsize,
    /// Objects, in lists and in events.
    changes: AtomicU64,
}

/// Clients that count what they receive.
pub(super) struct Clients {
    count: usize,
    started: Instant,
    counters: Arc<Counters>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
    _kubeconfig: Kubeconfig,
}

impl Clients {
    /// Starts all clients at the same time.
    pub(super) fn start(cluster: &Cluster, count: usize) -> Result<Clients> {
        let kubernetes = &cluster.kubernetes;
        let kubeconfig = Kubeconfig::new(&kubernetes.url())?
            .authority(&kubernetes.authority().pem())?
            .token_file(TOKEN)?;
        let access = Access {
            kubeconfig: Some(kubeconfig.path()),
            master: None,
            dialer: Some(kubernetes.netns().run(|| Ok(Dialer::here()?))?),
            content_type: ContentType::Protobuf,
        };
        let counters = Arc::new(Counters::default());
        let (stop, stopped) = oneshot::channel();
        let counted = Arc::clone(&counters);
        let started = Instant::now();
        let thread = thread::Builder::new().name("clients".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let tasks = LocalSet::new();
            runtime.block_on(tasks.run_until(async {
                for n in 0..count {
                    tasks.spawn_local(source(&access, n, &counted)?);
                }
                // An error: the sender is gone, which is the same.
                let _ = stopped.await;
                Ok(())
            }))
        })?;
        Ok(Clients { count, started, counters, stop, thread, _kubeconfig: kubeconfig })
    }

    /// Waits until all clients have all lists. Returns how long that took since the start.
    pub(super) fn wait_until_synced(&self, timeout: Duration) -> Result<Duration> {
        loop {
            let synced = self.counters.synced.load(Ordering::Relaxed);
            let took = self.started.elapsed();
            if synced == self.count {
                return Ok(took);
            }
            ensure!(!self.thread.is_finished(), "the thread of the clients has ended");
            ensure!(took < timeout, "{synced} of {} clients have all lists", self.count);
            thread::sleep(POLL);
        }
    }

    /// Returns how many objects all clients together have received.
    pub(super) fn changes(&self) -> u64 {
        self.counters.changes.load(Ordering::Relaxed)
    }

    /// Waits until all clients together have received this many objects.
    pub(super) fn wait_for_changes(&self, expected: u64, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        while self.changes() < expected {
            let changes = self.changes();
            ensure!(started.elapsed() < timeout, "{changes} of {expected} objects have come");
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Closes all connections.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The client of the n-th node.
fn source(
    access: &Access,
    n: usize,
    counters: &Arc<Counters>,
) -> Result<impl Future<Output = ()> + use<>> {
    let name = format!("worker-{n:03}");
    let source = Source::new(access.clone(), &name, |_| {}, Arc::new(|_: &ObservedRequest<'_>| {}));
    let source = source.context("a client cannot be made")?;
    let counters = Arc::clone(counters);
    Ok(source.run(move |batch| {
        if batch.changes.contains(&Change::Synced) {
            counters.synced.fetch_add(1, Ordering::Relaxed);
        }
        let count = batch.changes.len() as u64;
        counters.changes.fetch_add(count, Ordering::Relaxed);
        ControlFlow::Continue(())
    }))
}
