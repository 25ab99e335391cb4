//! shunt beside the real kube-proxy, in its nftables and its iptables mode, with a real
//! kube-apiserver. `KUBEBUILDER_ASSETS` names the folder with kube-apiserver, etcd and kube-proxy.
//!
//! All follow one API server, each on a node of its own and one after the other. What a node does is
//! seen from outside: a pod connects to marker Services, whose names and ages are the first, a middle
//! and the last of all. Each subject is measured in the same way, by its process and its packets.

mod api;
pub(crate) mod churn;
pub(crate) mod shape;
mod site;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shunt_fake_apiserver::Kubernetes;

pub(crate) use self::api::{CLUSTER_CIDR, Cluster, Marker, SERVING_POD, fill, post};
use self::api::{replace, write_all};
pub(crate) use self::site::{Running, Site, Subject};
use crate::process::{cpu_time, memory, share};
use crate::table::{Figure, Table, Value};
use crate::{Size, median};

/// Mode iptables ends at the smaller size only.
const SIZES: [Size; 2] = [(1_000, 10), (10_000, 10)];
/// How long anything may take.
const PROGRAMMED_TIMEOUT: Duration = Duration::from_secs(300);
/// Nothing is repeated after this time: slow starts are measured less often than fast ones.
const ENOUGH: Duration = Duration::from_secs(45);
/// The period of kube-proxy's syncs without a change, `syncPeriod`.
const IDLE: Duration = Duration::from_secs(30);

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            let cluster = Cluster::start(&assets, *size).expect("a cluster");
            measure_all(table, &cluster).expect("figures beside kube-proxy");
        }
    }
}

/// The folder with the programs of Kubernetes. Without it there is a line that says so.
pub(crate) fn assets(table: &mut Table, size: Size) -> Option<PathBuf> {
    match Kubernetes::installed_with(&["kube-proxy"]) {
        Ok(assets) => Some(assets),
        Err(reason) => {
            println!("beside kube-proxy: not measured: {reason}");
            table.not_measured("beside kube-proxy", size, "not measured");
            None
        }
    }
}

fn measure_all(table: &mut Table, cluster: &Cluster) -> Result<()> {
    let mut all = Vec::new();
    for subject in Subject::ALL {
        match Figures::of(subject, cluster).with_context(|| subject.name()) {
            Ok(figures) => all.push((subject, figures)),
            // The others' figures are still worth their time.
            Err(error) if subject != Subject::Shunt => {
                println!("{error:#}");
                table.not_measured(subject.name(), cluster.size, "not measured: see above");
            }
            Err(error) => return Err(error),
        }
    }
    let mut row = |what: &str, pick: &dyn Fn(&Figures) -> (Value, usize)| {
        compare(table, what, cluster.size, &all, pick);
    };
    let time = |times: &[Duration]| (Value::time(median(times.to_vec())), times.len());
    let bytes = |bytes: &[u64]| (Value::bytes(median(bytes.to_vec())), bytes.len());
    row("cold start: process to packets", &|figures| time(&figures.cold));
    row("cold start: processor time", &|figures| time(&figures.processor));
    row("restart over its rules, a change meanwhile", &|figures| time(&figures.restarts));
    row("one endpoint: write sent to packets", &|figures| time(&figures.sent));
    row("one endpoint: processor time", &|figures| time(&figures.of_change));
    row("memory when settled", &|figures| bytes(&figures.settled));
    row("largest memory", &|figures| bytes(&figures.largest));
    row("idle for 30 s, of a core", &|figures| (Value::percent(figures.idle), 1));
    Ok(())
}

/// Adds a row with a figure of each of those that are compared, and how often it was measured.
fn compare<F>(
    table: &mut Table,
    what: &str,
    size: Size,
    all: &[(Subject, F)],
    pick: &dyn Fn(&F) -> (Value, usize),
) {
    let figure = |(subject, figures): &(Subject, F)| {
        let (value, n) = pick(figures);
        (n > 0).then(|| Figure::new(subject.name(), value, n))
    };
    table.figures(what, size, &all.iter().filter_map(figure).collect::<Vec<_>>());
}

/// How often something is measured at the most: what takes kube-proxy seconds takes shunt
/// milliseconds.
struct Repetitions {
    starts: usize,
    changes: usize,
}

impl Repetitions {
    fn of(subject: Subject) -> Repetitions {
        match subject {
            Subject::Shunt => Repetitions { starts: 5, changes: 20 },
            Subject::Nftables | Subject::Iptables => Repetitions { starts: 3, changes: 5 },
        }
    }
}

#[derive(Default)]
struct Figures {
    cold: Vec<Duration>,
    /// Processor time from the start until nothing is left to do.
    processor: Vec<Duration>,
    /// Bytes of memory: when there is nothing to do, and the largest so far.
    settled: Vec<u64>,
    largest: Vec<u64>,
    /// The share of a core that is used without any change.
    idle: f64,
    /// From sending an endpoint to the API server to the first packet.
    sent: Vec<Duration>,
    /// Processor time of a change, without that of idling.
    of_change: Vec<Duration>,
    restarts: Vec<Duration>,
}

impl Figures {
    fn of(subject: Subject, cluster: &Cluster) -> Result<Figures> {
        let mut figures = Figures::default();
        let repetitions = Repetitions::of(subject);
        let started = Instant::now();
        let (site, mut running) = loop {
            let site = Site::new(subject, cluster)?;
            let running = figures.start(&site)?;
            if figures.cold.len() == repetitions.starts || started.elapsed() > ENOUGH {
                break (site, running);
            }
        };
        figures.idle = share(running.pid(), IDLE)?;
        let started = Instant::now();
        while figures.sent.len() < repetitions.changes && started.elapsed() < ENOUGH {
            figures.change(cluster, &site, &running)?;
        }
        let started = Instant::now();
        while figures.restarts.len() < repetitions.starts && started.elapsed() < ENOUGH {
            running = figures.restart(cluster, &site, running)?;
        }
        Ok(figures)
    }

    /// Starts the process on a node whose kernel holds nothing.
    fn start(&mut self, site: &Site<'_>) -> Result<Running> {
        let running = site.start()?;
        match site.wait_until_programmed(&running, PROGRAMMED_TIMEOUT) {
            Ok(took) => self.cold.push(took),
            Err(error) => {
                // What it started would go on.
                running.stop()?;
                return Err(error);
            }
        }
        running.wait_until_calm(PROGRAMMED_TIMEOUT)?;
        self.processor.push(cpu_time(running.pid())?);
        let memory = memory(running.pid())?;
        self.settled.push(memory.resident);
        self.largest.push(memory.peak);
        Ok(running)
    }

    /// Replaces an endpoint while nothing else happens.
    fn change(&mut self, cluster: &Cluster, site: &Site<'_>, running: &Running) -> Result<()> {
        let slice = cluster.next_slice(Marker::Last);
        let mut connection = cluster.kubernetes.admin().connection()?;
        let (before, sent) = (cpu_time(running.pid())?, Instant::now());
        let seen = thread::scope(|scope| {
            let write = scope.spawn(|| replace(&mut connection, &slice));
            let seen = site.wait_for(&[Marker::Last], sent, PROGRAMMED_TIMEOUT);
            write.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            seen
        });
        let seen = seen?.with_context(|| format!("no packet shows a change\n{}", running.log()))?;
        running.wait_until_calm(PROGRAMMED_TIMEOUT)?;
        let processor = cpu_time(running.pid())?.saturating_sub(before);
        let idle = sent.elapsed().mul_f64(self.idle);
        self.sent.push(seen);
        self.of_change.push(processor.saturating_sub(idle));
        Ok(())
    }

    /// Kills the process, replaces an endpoint, and starts it again over its rules.
    fn restart(&mut self, cluster: &Cluster, site: &Site<'_>, running: Running) -> Result<Running> {
        drop(running);
        cluster.replace(&cluster.next_slice(Marker::Last))?;
        let running = site.start()?;
        self.restarts.push(site.wait_until_programmed(&running, PROGRAMMED_TIMEOUT)?);
        running.wait_until_calm(PROGRAMMED_TIMEOUT)?;
        Ok(running)
    }
}
