//! Network programming latency, as SIG Scalability of Kubernetes defines it: from the trigger time
//! of an EndpointSlice to the rules. One hundred pods a second are replaced, for one minute.
//!
//! The benchmark writes the slices in the place of the EndpointSlice controller, with fresh trigger
//! times. A pod connects to marker Services whose endpoint changes meanwhile, at random times relative to
//! any period.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::{
    Cluster, Marker, PROGRAMMED_TIMEOUT, Running, Site, Subject, assets, compare, replace,
};
use crate::process::cpu_time;
use crate::table::{Table, Value};
use crate::{Size, objects};

const SIZES: [Size; 1] = [(1_000, 10)];
const PODS_PER_SECOND: u32 = 100;
const SECONDS: u32 = 60;
/// Connections that write slices in turns.
const WRITERS: u32 = 4;
/// The longest pause of a witness between two of its changes.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            let cluster = Cluster::start(&assets, *size).expect("a cluster");
            measure_all(table, &cluster).expect("figures under churn");
        }
    }
}

fn measure_all(table: &mut Table, cluster: &Cluster) -> Result<()> {
    let mut all = Vec::new();
    for (turn, subject) in (0..).zip(Subject::ALL) {
        let figures = Figures::of(subject, cluster, turn * PODS_PER_SECOND * SECONDS);
        all.push((subject, figures.with_context(|| subject.name())?));
    }
    let mut row = |what: &str, pick: &dyn Fn(&Figures) -> (Value, usize)| {
        compare(table, what, cluster.size, &all, pick);
    };
    for percent in [50, 99] {
        row(&format!("trigger time to packets: {percent} %"), &|figures| {
            let at = (figures.seen.len() * percent / 100).min(figures.seen.len() - 1);
            (Value::time(figures.seen[at]), figures.seen.len())
        });
    }
    row("slices written for pods", &|figures| (Value::per_second(figures.writes_per_second), 1));
    row("processor, of a core", &|figures| (Value::percent(figures.share), 1));
    Ok(())
}

struct Figures {
    /// From the trigger times of the markers' slices to the first packets, in order.
    seen: Vec<Duration>,
    writes_per_second: f64,
    /// Of a core, meanwhile.
    share: f64,
}

impl Figures {
    /// Replaces pods, whose numbers start at `first`.
    fn of(subject: Subject, cluster: &Cluster, first: u32) -> Result<Figures> {
        let site = Site::new(subject, cluster)?;
        let running = site.start()?;
        site.wait_until_programmed(&running, PROGRAMMED_TIMEOUT)?;
        running.wait_until_calm(PROGRAMMED_TIMEOUT)?;
        let (processor, started) = (cpu_time(running.pid())?, Instant::now());
        let end = started + Duration::from_secs(SECONDS.into());
        let (mut seen, writes_per_second) = thread::scope(|scope| {
            let write = |writer| move || replace_pods(cluster, first, writer, started);
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(write(writer))).collect();
            let (site, running) = (&site, &running);
            let watch = |marker| move || watch_marker(cluster, site, running, marker, end);
            let witnesses = Marker::ALL.map(|marker| scope.spawn(watch(marker)));
            let mut seen = Vec::new();
            for witness in witnesses {
                let times = witness.join();
                seen.extend(times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            let mut writes = 0.0;
            for writer in writers {
                let rate = writer.join();
                writes += rate.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            anyhow::Ok((seen, writes))
        })?;
        let elapsed = started.elapsed().as_secs_f64();
        let processor = cpu_time(running.pid())?.saturating_sub(processor);
        let share = processor.as_secs_f64() / elapsed;
        ensure!(!seen.is_empty(), "nothing was seen");
        seen.sort_unstable();
        Ok(Figures { seen, writes_per_second, share })
    }
}

/// Writes slices at fixed times until the minute is over. Returns how many a second.
fn replace_pods(cluster: &Cluster, first: u32, writer: u32, started: Instant) -> Result<f64> {
    let mut connection = cluster.kubernetes.admin().connection()?;
    let mut written = 0;
    for turn in (writer..PODS_PER_SECOND * SECONDS).step_by(WRITERS as usize) {
        let due = started + Duration::from_secs(1) * turn / PODS_PER_SECOND;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut slice = slice_after(cluster.size, first + turn);
        slice["metadata"]["annotations"][TRIGGER] = json!(Timestamp::now().to_string());
        replace(&mut connection, &slice)?;
        written += 1;
    }
    Ok(f64::from(written) / started.elapsed().as_secs_f64())
}

/// The slice that changes with a replacement: Services come in turns, and so do their endpoints.
fn slice_after((services, endpoints): Size, replacement: u32) -> Json {
    let (n, round) = (replacement % services, replacement / services);
    let mut slice = objects::slice(n, endpoints);
    for e in 0..endpoints {
        let replaced = round / endpoints + u32::from(e <= round % endpoints);
        if replaced > 0 {
            let address = 0x0b00_0000 + (replaced * 0x10_0000 + n * endpoints + e) % 0x00ff_0000;
            slice["endpoints"][e as usize]["addresses"] = json!([Ipv4Addr::from(address)]);
        }
    }
    slice
}

/// Changes the endpoint of a marker until `end`, and waits for the packets that show it each time.
fn watch_marker(
    cluster: &Cluster,
    site: &Site<'_>,
    running: &Running,
    marker: Marker,
    end: Instant,
) -> Result<Vec<Duration>> {
    /// The golden ratio: its multiples are spread evenly over all phases.
    const PHASES: f64 = 0.618_033_988_749_895;
    let mut connection = cluster.kubernetes.admin().connection()?;
    let mut times = Vec::new();
    for turn in 1.. {
        let phase = (PHASES * f64::from(turn) + marker as u8 as f64 / 3.0).fract();
        thread::sleep(LONGEST_PAUSE.mul_f64(phase));
        if Instant::now() >= end {
            break;
        }
        let mut slice = cluster.next_slice(marker);
        slice["metadata"]["annotations"] = json!({TRIGGER: Timestamp::now().to_string()});
        let triggered = Instant::now();
        let seen = thread::scope(|scope| {
            let write = scope.spawn(|| replace(&mut connection, &slice));
            let seen = site.wait_for(&[marker], triggered, PROGRAMMED_TIMEOUT);
            write.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            seen
        })?;
        times.push(seen.with_context(|| format!("no packet shows a change\n{}", running.log()))?);
    }
    Ok(times)
}
