//! The cluster of kubernetes/kubernetes#135639: 5 006 Services with 250 011 endpoints. The kube-proxy
//! of that issue took 2 to 20 minutes for it in its nftables mode, with a chain for each endpoint.
//! That of Kubernetes 1.36 writes no such chains.
//!
//! The issue names these two numbers only. Here 5 000 Services have 50 endpoints each, all different; the markers,
//! the API server's own Service and two more are the rest. A size as argument stands for the 5 000.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::{Cluster, Marker, Site, Subject, assets, write_all};
use crate::process::memory;
use crate::table::{Figure, Table, Value};
use crate::{Size, median, objects};

const SIZES: [Size; 1] = [(5_000, 50)];
/// Two more Services, and endpoints of each.
const OTHERS: Size = (2, 4);
const RUNS: usize = 3;
/// kube-proxy is stopped after this time.
const LIMIT: Duration = Duration::from_secs(110);
const CALM_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        if let Some(assets) = assets(table, *size) {
            measure_all(table, &assets, *size).expect("figures of a large cluster");
        }
    }
}

fn measure_all(table: &mut Table, assets: &Path, size: Size) -> Result<()> {
    let (services, endpoints) = size;
    let cluster = Cluster::filled_by(assets, size, |admin| {
        write_all(admin, services + OTHERS.0, |n| {
            let endpoints = if n < services { endpoints } else { OTHERS.1 };
            vec![objects::service(n), objects::slice(n, endpoints)]
        })
    })?;
    let (mut starts, mut largest) = (Vec::new(), Vec::new());
    for subject in Subject::ALL {
        let runs = if subject == Subject::Shunt { RUNS } else { 1 };
        let (mut times, mut settled) = (Vec::new(), Vec::new());
        let mut peaks = Vec::new();
        for _ in 0..runs {
            let site = Site::new(subject, &cluster)?;
            let running = site.start()?;
            let took = site.wait_for(&Marker::ALL, running.started, LIMIT)?;
            if took.is_some() && subject == Subject::Shunt {
                running.wait_until_calm(CALM_TIMEOUT)?;
            }
            let memory = memory(running.pid())?;
            running.stop()?;
            settled.push(memory.resident);
            peaks.push(memory.peak);
            times.extend(took);
        }
        let name = subject.name();
        starts.push(if times.is_empty() {
            Figure::more_than(name, Value::time(LIMIT), runs)
        } else {
            Figure::new(name, Value::time(median(times)), runs)
        });
        largest.push(Figure::new(name, Value::bytes(median(peaks)), runs));
        if subject == Subject::Shunt {
            let settled = Value::bytes(median(settled));
            table.figures("memory when settled", size, &[Figure::new(name, settled, runs)]);
        }
    }
    table.figures("cold start: process to packets", size, &starts);
    table.figures("largest memory until then", size, &largest);
    Ok(())
}
