//! What goes on in any cluster, only faster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_fake_apiserver::{Key, Kind};

use shunt_testbed::Random;

use crate::cluster::{Cluster, changing, endpoints, name};
use crate::disturbances::Plan;

/// How many objects were changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// EndpointSlices that were replaced.
    pub(crate) slices: usize,
    /// Services that were replaced.
    pub(crate) services: usize,
    /// Services that were deleted, and those that were made anew.
    pub(crate) deleted: usize,
    pub(crate) made: usize,
    /// New labels of our Node.
    pub(crate) nodes: usize,
}

/// Changes objects until it is over.
pub(crate) fn churn(
    cluster: &Cluster,
    plan: &Plan,
    mut random: Random,
    over: &AtomicBool,
) -> Result<Changes> {
    let mut changes = Changes::default();
    let mut gone: Vec<usize> = Vec::new();
    let pause = Duration::from_secs(1) / plan.changes_per_second;
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let n = random.below(plan.services);
        // Rare as it is, it happens in any case.
        match if changes.nodes == 0 { 0 } else { random.below(100) } {
            0 => {
                cluster.put_node(["a", "b", "c"][random.below(3)])?;
                changes.nodes += 1;
            }
            1..8 if !gone.contains(&n) => {
                delete(cluster, n)?;
                gone.push(n);
                changes.deleted += 1;
            }
            8..20 if !gone.is_empty() => {
                let n = gone.swap_remove(random.below(gone.len()));
                // In both orders.
                if random.below(2) == 0 {
                    cluster.api.put(changing(n, &mut random))?;
                    cluster.api.put(endpoints(n, &mut random))?;
                } else {
                    cluster.api.put(endpoints(n, &mut random))?;
                    cluster.api.put(changing(n, &mut random))?;
                }
                changes.made += 1;
            }
            20..35 if !gone.contains(&n) => {
                cluster.api.put(changing(n, &mut random))?;
                changes.services += 1;
            }
            _ if !gone.contains(&n) => {
                cluster.api.put(endpoints(n, &mut random))?;
                changes.slices += 1;
            }
            _ => {}
        }
        next += pause;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(changes)
}

fn delete(cluster: &Cluster, n: usize) -> Result<()> {
    let (service, slice) = (
        Key::new(Kind::Service, &name(n)),
        Key::new(Kind::EndpointSlice, &format!("{}-v4", name(n))),
    );
    cluster.api.delete(&service)?;
    cluster.api.delete(&slice)
}
