//! A worker over fake nf_tables, with made-up time.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nfnetlink::nft::{Batch, Elements, Error, FinishedBatch, Kernel, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Change, ChangeBatch, Family, Protocol};
use shunt_core::plan::{FrontendKey, Options, Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Faulty, Listing, NODE, Namespace, Socket, service, slice};

use crate::dataplane::command::{Backlog, Command, Commands, Configure, channel};
use crate::dataplane::stopwatch::Stopwatch;
use crate::dataplane::worker::{Pace, Worker};
use crate::dataplane::{Dataplane, Event, Ownership, Snapshot};

/// What happened, and when: since the start of the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) at: Duration,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Wrote { added: usize, deleted: usize },
    Unchanged,
    Failed { retry_in: Duration, error: String },
    CleanedUp,
    Held,
    Repaired(usize),
    Quarantined(String),
    Released(String),
    Conflict(String),
    Oversized(String),
}

type Decide = dyn FnMut(Call<'_>) -> Option<Fault> + Send;
type Report = dyn FnMut(Event<'_>);

/// What the worker, its kernel and its stopwatch share with the test.
#[derive(Default)]
struct Shared {
    now: Duration,
    processor: Duration,
    log: Vec<Logged>,
    triggers: usize,
    /// The frontends with changed flows.
    swept: BTreeSet<FrontendKey>,
    snapshot: Arc<Snapshot>,
    decide: Option<Box<Decide>>,
    /// The processor time of each listing.
    cost: Duration,
}

#[derive(Clone, Default)]
struct Handle(Arc<Mutex<Shared>>);

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, what: What) {
        let mut shared = self.lock();
        let at = shared.now;
        shared.log.push(Logged { at, what });
    }

    fn report(&self, event: Event<'_>) {
        match event {
            Event::Synced { wrote, batches, snapshot, flows, .. } => {
                let mut shared = self.lock();
                shared.swept.extend(flows.into_iter().map(|(key, _)| key));
                shared.snapshot = snapshot;
                shared.triggers += batches.iter().map(|batch| batch.triggers.len()).sum::<usize>();
                drop(shared);
                self.log(match wrote {
                    Some(report) => What::Wrote { added: report.added, deleted: report.deleted },
                    None => What::Unchanged,
                });
            }
            Event::Failed { error, retry_in, .. } => {
                self.log(What::Failed { retry_in, error: error.to_string() });
            }
            Event::Held { .. } => self.log(What::Held),
            Event::CleanedUp { .. } => self.log(What::CleanedUp),
            Event::Repaired { repaired, .. } => self.log(What::Repaired(repaired)),
            Event::Quarantined(one, _) => self.log(What::Quarantined(one.what.clone())),
            Event::Released(one, _) => self.log(What::Released(one.what.clone())),
            Event::Conflict(one) => self.log(What::Conflict(one.field.to_owned())),
            Event::Oversized(service) => self.log(What::Oversized(service.to_string())),
        }
    }
}

impl Stopwatch for Handle {
    fn elapsed(&self) -> Duration {
        self.lock().now
    }

    fn processor_time(&self) -> Duration {
        self.lock().processor
    }
}

pub(super) struct World {
    pub(super) namespace: Namespace,
    shared: Handle,
    start: Instant,
    worker: Worker<Box<Report>>,
    commands: Commands,
    queue: Receiver<Command>,
    pub(super) backlog: Backlog,
}

/// Checks once a second, commits at once.
pub(super) const PACE: Pace =
    Pace { min_period: Duration::ZERO, check_period: Duration::from_secs(1) };

impl World {
    /// An agent that owns its tables in an empty namespace.
    pub(super) fn new() -> World {
        World::with(Namespace::new(), Ownership::Own, PACE)
    }

    /// The same, with a Service that has these endpoints.
    pub(super) fn serving(endpoints: &[u16]) -> World {
        let mut world = World::new();
        world.commit(cluster(endpoints));
        world
    }

    /// An agent with this Service whose tables any process may change.
    pub(super) fn shared(changes: Vec<Change>) -> World {
        let mut world = World::with(Namespace::new(), Ownership::Share, PACE);
        world.commit(changes);
        world
    }

    pub(super) fn with(namespace: Namespace, ownership: Ownership, pace: Pace) -> World {
        let shared = Handle::default();
        let handle = shared.clone();
        let decide = move |call: Call<'_>| {
            let mut shared = handle.lock();
            if matches!(call, Call::List) {
                let cost = shared.cost;
                shared.processor += cost;
            }
            let mut decide = shared.decide.take()?;
            // Without the lock, so that it may do anything.
            drop(shared);
            let fault = decide(call);
            handle.lock().decide.get_or_insert(decide);
            fault
        };
        let kernel = Box::new(Faulty::new(namespace.open(), decide));
        let dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, ownership)
            .expect("fake nf_tables")
            .measured_with(Box::new(shared.clone()));
        let (commands, queue, backlog) = channel(Arc::new(|_| ()));
        let handle = shared.clone();
        let report: Box<Report> = Box::new(move |event| handle.report(event));
        let start = Instant::now();
        let worker = Worker::new(dataplane, backlog.clone(), pace, report, start);
        World { namespace, shared, start, worker, commands, queue, backlog }
    }

    /// Lets `decide` look at each call to the kernel, from now on.
    pub(super) fn on_call(&self, decide: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) {
        self.shared.lock().decide = Some(Box::new(decide));
    }

    /// The same for each transaction, which does nothing if it fails.
    pub(super) fn on_commit(
        &self,
        mut fail: impl FnMut(&FinishedBatch) -> Option<Error> + Send + 'static,
    ) {
        self.on_call(move |call| match call {
            Call::Commit(batch) => fail(batch).map(Fault::Before),
            _ => None,
        });
    }

    /// Takes the frontends whose flows were to be swept since the last call.
    pub(super) fn take_swept(&self) -> BTreeSet<FrontendKey> {
        std::mem::take(&mut self.shared.lock().swept)
    }

    /// Each listing takes so much processor time.
    pub(super) fn listings_cost(&self, cost: Duration) {
        self.shared.lock().cost = cost;
    }

    /// The processor time of all listings.
    pub(super) fn processor(&self) -> Duration {
        self.shared.lock().processor
    }

    /// Sends changes; [`World::pass`] lets the worker take them.
    pub(super) fn send(&self, changes: Vec<Change>) {
        self.send_batch(ChangeBatch::new(changes, self.start));
    }

    /// Sends changes, and lets the worker do what is due.
    pub(super) fn apply(&mut self, changes: Vec<Change>) {
        self.send(changes);
        self.settle();
    }

    /// The same for changes that lead to one commit and nothing else.
    pub(super) fn commit(&mut self, changes: Vec<Change>) {
        self.apply(changes);
        let events = self.events();
        assert!(matches!(events[..], [What::Wrote { .. }]), "{events:?}");
    }

    pub(super) fn send_batch(&self, batch: ChangeBatch) {
        self.commands.send(Command::Changes(batch)).expect("a receiver");
    }

    /// Sends other options.
    pub(super) fn configure(&self, options: Options) {
        let min_period = PACE.min_period;
        let configure = Configure { options, node_name: NODE.to_owned(), min_period };
        self.commands.send(Command::Configure(configure)).expect("a receiver");
    }

    /// Lets time pass; the worker does what its thread would do.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.shared.lock().now + time;
        for _ in 0..1_000_000 {
            let now = self.start + self.shared.lock().now;
            self.queue.try_iter().for_each(|command| self.worker.take(command));
            self.worker.look(now);
            self.worker.work(now);
            self.worker.clean_up(now);
            let wake = self.worker.next_wake(now).map(|at| at - self.start);
            let Some(wake) = wake.filter(|wake| *wake <= end) else {
                self.shared.lock().now = end;
                return;
            };
            let mut shared = self.shared.lock();
            shared.now = shared.now.max(wake);
        }
        panic!("the worker never rests");
    }

    /// Lets the worker do what is due now.
    pub(super) fn settle(&mut self) {
        self.pass(Duration::ZERO);
    }

    /// When the worker wakes without a command.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let now = self.start + self.shared.lock().now;
        self.worker.next_wake(now).map(|at| at - self.start)
    }

    /// What happened since the last call.
    pub(super) fn log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.shared.lock().log)
    }

    /// The same without times, and without what is deleted behind commits.
    pub(super) fn events(&self) -> Vec<What> {
        let log = self.log().into_iter().map(|logged| logged.what);
        log.filter(|what| *what != What::CleanedUp).collect()
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.lock().snapshot.clone()
    }

    /// How many triggers were reported with syncs.
    pub(super) fn triggers(&self) -> usize {
        self.shared.lock().triggers
    }

    /// What the kernel has in the table of IPv4.
    pub(super) fn listing(&self) -> Listing {
        let listing = Listing::of(&mut self.namespace.open(), TableFamily::Ip, TABLE);
        listing.expect("a listing").expect("a table")
    }

    /// Another process deletes elements of `endpoints` whose keys begin like this, or else the first.
    pub(super) fn lose_endpoints(&self, keys: &[u8]) {
        let listing = self.listing();
        let listed = listing.elements[Set::Endpoints.name()].iter();
        let mut elements = Elements::new();
        let lost = listed.filter(|element| element.key.starts_with(keys));
        let count = if keys.is_empty() { 1 } else { usize::MAX };
        lost.take(count).for_each(|element| elements.push(&element.key, None, None));
        let mut batch = Batch::new(None);
        batch.delete_elements(TableFamily::Ip, TABLE, Set::Endpoints.name(), &elements);
        self.foreign(&batch.finish());
    }

    /// Another process deletes the table of IPv4.
    pub(super) fn lose_table(&self) {
        let mut batch = Batch::new(None);
        batch.delete_table(TableFamily::Ip, TABLE);
        self.foreign(&batch.finish());
    }

    /// Another process commits.
    pub(super) fn foreign(&self, batch: &FinishedBatch) {
        foreign(&self.namespace, batch).expect("a commit of another process");
    }
}

/// Another process commits.
pub(super) fn foreign(namespace: &Namespace, batch: &FinishedBatch) -> Result<(), Error> {
    let mut socket: Socket = namespace.open();
    socket.commit(batch)
}

/// A Service with these IPv4 endpoints, in a cluster that is listed.
pub(super) fn cluster(endpoints: &[u16]) -> Vec<Change> {
    vec![
        Change::service(service(1)),
        Change::slice(slice(1, Family::V4, endpoints)),
        Change::Synced,
    ]
}

/// Other IPv4 endpoints of that Service.
pub(super) fn endpoints(numbers: &[u16]) -> Vec<Change> {
    vec![Change::slice(slice(1, Family::V4, numbers))]
}

/// The kernel has no room for an answer.
pub(super) fn no_buffers() -> Error {
    Error::Receive(io::Error::from_raw_os_error(Errno::ENOBUFS as i32))
}

/// The same Services and slices with ports of UDP, whose flows are swept.
pub(super) fn over_udp(changes: Vec<Change>) -> Vec<Change> {
    let udp = |change| match change {
        Change::Service(service) => {
            let mut service = (*service).clone();
            service.ports.iter_mut().for_each(|port| port.protocol = Protocol::Udp);
            Change::service(service)
        }
        Change::Slice(slice) => {
            let mut slice = (*slice).clone();
            slice.ports.iter_mut().for_each(|port| port.protocol = Protocol::Udp);
            Change::slice(slice)
        }
        other => other,
    };
    changes.into_iter().map(udp).collect()
}

/// Something in a table of another program.
pub(super) fn elsewhere(name: &str) -> FinishedBatch {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, name, 0, name);
    batch.finish()
}
