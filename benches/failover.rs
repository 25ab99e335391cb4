//! A pod dies without a word while clients connect to its Service: how long connections wait, and with
//! the real kube-proxy in its nftables mode.
//!
//! Each has a node of its own, and all follow the same kube-apiserver. The pod dies on all of them
//! at the same time. The benchmark removes the endpoint from its slice some time later, in the place
//! of the controllers of Kubernetes.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use shunt_fake_apiserver::Kind;
use shunt_testbed::{Echo, Host};

use crate::beside::{Cluster, Running, Site, Subject, assets, post};
use crate::table::{Figure, Table, Value};
use crate::{Size, median, objects};

const SIZES: [Size; 1] = [(100, 3)];
const REPETITIONS: usize = 5;
const PROGRAMMED_TIMEOUT: Duration = Duration::from_secs(60);

/// From the death of the pod until its endpoint leaves the slice.
const API_DELAY: Duration = Duration::from_secs(15);
/// How long new connections are opened after that.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// Between two new connections.
const PAUSE: Duration = Duration::from_millis(50);
/// When a client gives up.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that takes longer has sent a SYN twice, which Linux does after a second.
const WAITED: Duration = Duration::from_millis(900);

/// The pod neither hears nor says anything any more.
const DEATH: &str = "table inet dead {
    chain input {
        type filter hook input priority 0; policy drop
    }
}";

const SERVICE: &str = "failover";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 110);
const PORT: u16 = 80;
const TARGET: u16 = 8090;

const COMPARED: [Subject; 2] = [Subject::Shunt, Subject::Nftables];

type OfSample = fn(&Sample) -> Duration;

/// The rows that are times.
const TIMES: [(&str, OfSample); 3] = [
    ("death until new connections do not wait", |sample| sample.last_began),
    ("death until no connection waits or fails", |sample| sample.last_ended),
    ("longest connect() that succeeded", |sample| sample.longest_success),
];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            let cluster = Cluster::start(&assets, *size).expect("a cluster");
            measure_all(table, &cluster).expect("figures of a failover");
        }
    }
}

fn measure_all(table: &mut Table, cluster: &Cluster) -> Result<()> {
    let admin = cluster.kubernetes.admin();
    post(admin, Kind::Service, &objects::http_service(SERVICE, ADDRESS, PORT))?;
    post(admin, Kind::EndpointSlice, &slice(true))?;
    let mut all: [Vec<Sample>; COMPARED.len()] = Default::default();
    for _ in 0..REPETITIONS {
        cluster.replace(&slice(true))?;
        for (samples, sample) in all.iter_mut().zip(sample(cluster)?) {
            samples.push(sample);
        }
    }
    let mut row = |what: &str, of: &dyn Fn(&[Sample]) -> Value| {
        let figures = COMPARED.iter().zip(&all);
        let figures = figures.map(|(subject, it)| Figure::new(subject.name(), of(it), it.len()));
        table.figures(what, cluster.size, &figures.collect::<Vec<_>>());
    };
    for (what, time) in TIMES {
        row(what, &|samples| Value::time(median(samples.iter().map(time).collect())));
    }
    row("connections that failed, of 20 a second", &|samples| {
        Value::count(median(samples.iter().map(|sample| sample.failed).collect()))
    });
    Ok(())
}

/// What the clients of one node met.
struct Sample {
    /// From the death: when the last connection began that waited or failed.
    last_began: Duration,
    /// From the death: when the last of them succeeded or failed.
    last_ended: Duration,
    longest_success: Duration,
    failed: u64,
}

/// Lets the pod die once on all nodes.
fn sample(cluster: &Cluster) -> Result<Vec<Sample>> {
    let nodes =
        COMPARED.map(|subject| NodeUnderTest::new(subject, cluster).context(subject.name()));
    let nodes: Vec<NodeUnderTest<'_>> = nodes.into_iter().collect::<Result<_>>()?;
    thread::scope(|scope| {
        let began = Instant::now();
        let mut clients = Vec::new();
        for (node, subject) in nodes.iter().zip(COMPARED) {
            node.site.lab.pod3.nft(DEATH)?;
            let died = Instant::now();
            let connect = move || node.site.lab.pod1.run(|| connect(died));
            clients.push((subject.name(), scope.spawn(connect)));
        }
        thread::sleep(API_DELAY.saturating_sub(began.elapsed()));
        cluster.replace(&slice(false))?;
        let join = |(name, client): (&str, thread::ScopedJoinHandle<'_, Result<Sample>>)| {
            let sample = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sample.context(name.to_owned())
        };
        clients.into_iter().map(join).collect()
    })
}

/// A node with all rules, and servers in the pods of the Service.
struct NodeUnderTest<'a> {
    site: Site<'a>,
    _running: Running,
    _servers: Vec<Echo>,
}

impl<'a> NodeUnderTest<'a> {
    fn new(subject: Subject, cluster: &'a Cluster) -> Result<Self> {
        let site = Site::new(subject, cluster)?;
        let lab = &site.lab;
        let pod4 = lab.add_pod(&lab.node2, "pod-4", [10, 244, 1, 22], "fd00:244:1::22")?;
        let pods: [&Host; 3] = [&lab.pod2, &lab.pod3, &pod4];
        let servers = pods.map(|pod| Echo::on(pod, TARGET)).into_iter().collect::<Result<_>>()?;
        let running = site.start()?;
        site.wait_until_programmed(&running, PROGRAMMED_TIMEOUT)?;
        running.wait_until_calm(PROGRAMMED_TIMEOUT)?;
        Ok(Self { site, _running: running, _servers: servers })
    }
}

/// Opens connections until some time after the API has changed.
fn connect(died: Instant) -> Result<Sample> {
    let attempts: Vec<Attempt> = thread::scope(|scope| {
        let mut clients = Vec::new();
        while died.elapsed() < API_DELAY + AFTERWARDS {
            clients.push(scope.spawn(move || Attempt::new(died)));
            thread::sleep(PAUSE);
        }
        let join = |client: thread::ScopedJoinHandle<'_, Attempt>| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        clients.into_iter().map(join).collect()
    });
    let affected = || attempts.iter().filter(|it| !it.succeeded || it.ended - it.began >= WAITED);
    ensure!(affected().count() > 0, "no connection has met the dead pod");
    let last = |time: fn(&Attempt) -> Duration| affected().map(time).max().unwrap_or_default();
    let succeeded = attempts.iter().filter(|it| it.succeeded);
    Ok(Sample {
        last_began: last(|it| it.began),
        last_ended: last(|it| it.ended),
        longest_success: succeeded.map(|it| it.ended - it.began).max().unwrap_or_default(),
        failed: attempts.iter().filter(|it| !it.succeeded).count() as u64,
    })
}

/// A connection; times are from the death of the pod.
struct Attempt {
    began: Duration,
    ended: Duration,
    succeeded: bool,
}

impl Attempt {
    fn new(died: Instant) -> Self {
        let to = SocketAddr::from((ADDRESS, PORT));
        let began = died.elapsed();
        let succeeded = std::net::TcpStream::connect_timeout(&to, CLIENT_TIMEOUT).is_ok();
        Self { began, ended: died.elapsed(), succeeded }
    }
}

/// The pods of the testbed that serve, with or without the one that dies.
fn slice(with_dead: bool) -> Json {
    let mut pods = vec![("10.244.0.12", "node-1"), ("10.244.1.22", "node-2")];
    if with_dead {
        pods.push(("10.244.1.21", "node-2"));
    }
    objects::http_slice(SERVICE, TARGET, &pods)
}
