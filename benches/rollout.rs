//! A rolling restart of thousands of pods, beside many other Services: how long each update of a
//! slice takes from its arrival to the kernel.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use shunt::dataplane::{Command, Event, Pace, spawn};
use shunt_core::model::{Change, ChangeBatch, Endpoint, EndpointSlice};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, open, slice};
use super::table::Table;

const PODS: u32 = 3_000;
const PODS_OF_A_SERVICE: u32 = 100;
const SIZES: [Size; 1] = [(10_000, 10)];
/// From one update to the next: a thousand in a second are more than controllers write.
const INTERVAL: Duration = Duration::from_millis(1);

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        let mut times = replay(*size);
        times.sort_unstable();
        let updates = times.len();
        for (name, at) in
            [("median", updates / 2), ("99 %", updates * 99 / 100), ("worst", updates - 1)]
        {
            let what = format!("rolling restart, {updates} slice updates: {name}");
            table.of(updates).time(&what, *size, times[at]);
        }
    }
}

fn replay(size: Size) -> Vec<Duration> {
    let ns = Netns::new().expect("a namespace");
    let mut dataplane = open(&ns);
    load(&mut dataplane, size);
    let services = PODS / PODS_OF_A_SERVICE;
    let mut slices: Vec<EndpointSlice> =
        (0..services).map(|n| slice(n, PODS_OF_A_SERVICE, 0)).collect();
    for slice in &slices {
        dataplane.apply(Change::slice(slice.clone()));
    }
    dataplane.sync().expect("a commit");

    let (sender, synced) = mpsc::channel();
    let pace = Pace { min_period: Duration::ZERO, check_period: Duration::ZERO };
    let commands = spawn(
        dataplane,
        pace,
        |_| {},
        move |event| {
            if let Event::Synced { batches, .. } = event {
                let now = Instant::now();
                // The receiver goes when it has seen enough.
                let _ = sender.send(batches.iter().map(|batch| now - batch.received).collect());
            }
        },
    )
    .expect("a thread");
    let mut updates = 0;
    let mut send = |slice: &EndpointSlice| {
        let batch = ChangeBatch::new(vec![Change::slice(slice.clone())], Instant::now());
        commands.send(Command::Changes(batch)).expect("a thread that listens");
        updates += 1;
        thread::sleep(INTERVAL);
    };
    for pod in 0..PODS_OF_A_SERVICE {
        // All Deployments roll at the same time, pod after pod: the new one is ready, the old one
        // terminates, the old one is gone.
        for slice in &mut slices {
            let old = slice.endpoints[0].clone();
            let new = Endpoint { address: successor(old.address, pod), ..old };
            slice.endpoints.push(new);
            send(slice);
            slice.endpoints[0].ready = false;
            slice.endpoints[0].terminating = true;
            send(slice);
            slice.endpoints.remove(0);
            send(slice);
        }
    }
    let mut times: Vec<Duration> = Vec::new();
    while times.len() < updates {
        let more: Vec<Duration> = synced.recv().expect("a commit");
        times.extend(more);
    }
    times
}

/// An address that no pod had before.
fn successor(address: std::net::IpAddr, pod: u32) -> std::net::IpAddr {
    match address {
        std::net::IpAddr::V4(old) => {
            std::net::Ipv4Addr::from(u32::from(old) % 0x0100_0000 + 0x0c00_0000 + (pod << 17))
                .into()
        }
        v6 => v6,
    }
}
