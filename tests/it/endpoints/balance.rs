//! Every endpoint gets its share.

use anyhow::{Result, ensure};
use shunt_testbed::{Echo, Host};

use super::changes::Changes;
use crate::table::{Case, Table};
use crate::world::{TARGET, World, slices, web};

const CONNECTIONS: usize = 3_000;
const ENDPOINTS: usize = 7;
/// What chi-square exceeds by chance in one of a thousand samples, with six degrees of freedom.
const CRITICAL: f64 = 22.46;

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

    // A true balance fails one sample in a thousand. Each cell may have a second sample, taken
    // independently of the first, and fails if both do: one true balance in a million. A balance
    // that is off by enough to matter fails both.
    Table::CLUSTER_IPS.check("seven endpoints", |case| {
        let first = chi_square(&world, case, &pods)?;
        if first > CRITICAL {
            let second = chi_square(&world, case, &pods)?;
            ensure!(second <= CRITICAL, "chi-square {first:.1}, and then {second:.1}");
        }
        Ok(())
    })
}

fn chi_square(world: &World, case: Case, pods: &[&Host]) -> Result<f64> {
    let client = world.lab.from(&world.lab.client).probe(case.protocol, case.address());
    let tally = client.tally(CONNECTIONS, std::time::Duration::from_secs(5))?;
    let counts: Vec<usize> = pods.iter().map(|pod| tally.reached(&pod.name)).collect();
    ensure!(counts.iter().sum::<usize>() == CONNECTIONS, "not all reached a server:\n{tally}");
    let expected = CONNECTIONS as f64 / ENDPOINTS as f64;
    Ok(counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum())
}
