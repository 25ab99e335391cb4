//! Every endpoint gets its share.

use std::time::Duration;

use anyhow::{Result, ensure};
use shunt_testbed::{Echo, Host};

use super::changes::Changes;
use crate::table::{Case, Table};
use crate::world::{TARGET, World, slices, web};

const ENDPOINTS: usize = 7;

#[test]
fn seven_endpoints_get_what_uniform_chance_allows() -> Result<()> {
    let world = World::new()?;
    let mut pods = vec![world.lab.pod1.clone(), world.lab.pod2.clone(), world.lab.pod3.clone()];
    let mut servers = Vec::new();
    for number in 4..=ENDPOINTS as u8 {
        let (v4, v6) = ([10, 244, 0, 10 + number], format!("fd00:244::1{number}"));
        let pod = world.lab.add_pod(&world.lab.node, &format!("pod-{number}"), v4, &v6)?;
        servers.push(Echo::on(&pod, TARGET)?);
        pods.push(pod);
    }
    let pods: Vec<&Host> = pods.iter().collect();
    world.manifests.write("web.yaml", web())?;
    world.manifests.write("slices.yaml", slices("web", &pods))?;
    let _changes = Changes::start(&world)?;

    let shares: Vec<(&Host, f64)> = pods.iter().map(|pod| (*pod, 1.0)).collect();
    // Of chi-square with six degrees of freedom.
    Table::CLUSTER_IPS
        .check("seven endpoints", |case| check_shares(&world, case, &shares, [22.46, 48.3]))
}

/// Compares the numbers of connections with shares, by chi-square. A true balance exceeds `critical` in
/// one of a thousand samples, and in one of a hundred million. What exceeds the first has a second,
/// larger sample, which shows whether that was chance.
pub(crate) fn check_shares(
    world: &World,
    case: Case,
    shares: &[(&Host, f64)],
    critical: [f64; 2],
) -> Result<()> {
    let client = world.lab.from(&world.lab.client).probe(case.protocol, case.address());
    let total: f64 = shares.iter().map(|(_, share)| share).sum();
    let chi_square = |connections: usize| -> Result<f64> {
        let tally = client.tally(connections, Duration::from_secs(5))?;
        let reached: usize = shares.iter().map(|(pod, _)| tally.reached(&pod.name)).sum();
        ensure!(reached == connections, "not all reached a server:\n{tally}");
        let deviation = |(pod, share): &(&Host, f64)| {
            let expected = connections as f64 * share / total;
            (tally.reached(&pod.name) as f64 - expected).powi(2) / expected
        };
        Ok(shares.iter().map(deviation).sum())
    };
    let first = chi_square(3_000)?;
    if first > critical[0] {
        let second = chi_square(10_000)?;
        ensure!(second <= critical[1], "chi-square {first:.1}, and then {second:.1}");
    }
    Ok(())
}
