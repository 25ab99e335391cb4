//! What goes on in any cluster, only faster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use shunt_fake_apiserver::{Key, Kind};

use shunt_testbed::Random;

use crate::cluster::{Cluster, changing, endpoints, name};
use crate::disturbances::{Counts, Plan};

/// Our Node gets another zone.
const NODE: &str = "new labels of the Node";

/// How many sorts of changes there are.
pub(crate) const SORTS: usize = 5;

/// Changes objects until it is over.
pub(crate) fn churn(
    cluster: &Cluster,
    plan: &Plan,
    mut random: Random,
    over: &AtomicBool,
) -> Result<Counts> {
    let mut changes = Counts::new();
    let mut gone: Vec<usize> = Vec::new();
    let pause = Duration::from_secs(1) / plan.changes_per_second;
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let n = random.below(plan.services);
        // Rare as it is, it happens in any case.
        let sort = match if changes.contains_key(NODE) { random.below(100) } else { 0 } {
            0 => {
                cluster.put_node(["a", "b", "c"][random.below(3)])?;
                NODE
            }
            1..8 if !gone.contains(&n) => {
                delete(cluster, n)?;
                gone.push(n);
                "Services deleted"
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
                "Services made anew"
            }
            20..35 if !gone.contains(&n) => {
                cluster.api.put(changing(n, &mut random))?;
                "Services replaced"
            }
            _ if !gone.contains(&n) => {
                cluster.api.put(endpoints(n, &mut random))?;
                "EndpointSlices replaced"
            }
            _ => continue,
        };
        *changes.entry(sort).or_default() += 1;
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
