//! How long shunt takes from the start of its process until a kernel that was empty holds everything,
//! beside the time in which a client gets the lists of Services and EndpointSlices, and no more.
//!
//! Both use the same way to the same kube-apiserver, in turns. The client asks for both lists at the
//! same time, on a new connection each, and drops what comes.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Cluster, PROGRAMMED_TIMEOUT, Site, Subject, assets};
use crate::Size;
use crate::cluster::median;
use crate::table::{Figure, Table, Value};

const SIZES: [Size; 1] = [(10_000, 10)];
const ROUNDS: usize = 9;

/// What the client accepts.
const ENCODINGS: [(&str, &str); 2] = [
    ("the bare lists, protobuf", "application/vnd.kubernetes.protobuf"),
    ("the bare lists, JSON", "application/json"),
];

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            let cluster = Cluster::start(&assets, *size).expect("a cluster");
            measure_in_turns(table, &cluster).expect("times until ready");
        }
    }
}

fn measure_in_turns(table: &mut Table, cluster: &Cluster) -> Result<()> {
    let lists = Cluster::lists();
    let lists = [&*lists[0], &*lists[1]];
    let mut ready = Vec::new();
    let mut bare = ENCODINGS.map(|_| (Vec::new(), 0));
    // The first round is not counted.
    for round in 0..=ROUNDS {
        let site = Site::new(Subject::Shunt, cluster)?;
        let running = site.start()?;
        let took = site.wait_until_programmed(&running, PROGRAMMED_TIMEOUT)?;
        running.stop()?;
        let client = site.client()?;
        let drain = |accept: &str| -> Result<(Duration, u64)> {
            let started = Instant::now();
            let bytes = client.drain(&lists, accept)?.iter().sum();
            Ok((started.elapsed(), bytes))
        };
        let drained = ENCODINGS.map(|(_, accept)| drain(accept));
        if round > 0 {
            ready.push(took);
            for ((times, size), drained) in bare.iter_mut().zip(drained) {
                let (took, bytes) = drained?;
                times.push(took);
                *size = bytes;
            }
        }
    }
    let ready = median(ready);
    let mut sizes = Vec::new();
    for ((name, _), (times, bytes)) in ENCODINGS.into_iter().zip(bare) {
        let what = "ready after: process to packets";
        table.of(ROUNDS).times(what, cluster.size, ready, name, median(times));
        sizes.push(Figure::new(name, Value::bytes(bytes), 1));
    }
    table.figures("both lists", cluster.size, &sizes);
    Ok(())
}
