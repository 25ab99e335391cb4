//! Session affinity.

use anyhow::{Context, Result, ensure};
use shunt_testbed::Host;

use super::{explain, wait_for};
use crate::table::service_of;
use crate::world::{World, slices};

#[test]
fn session_affinity_to_a_removed_endpoint_ends() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let write = |pods: &[&Host]| {
        let service = service_of("web", 81).spec("sessionAffinity: ClientIP");
        world.manifests.write("web.yaml", format!("{service}{}", slices("web", pods)))
    };
    write(&[&lab.pod1, &lab.pod2])?;
    let _agent = world.start()?;
    for (to, from) in [("10.96.0.81:80", "192.0.2.100"), ("[fd00:96::81]:80", "2001:db8:2::100")] {
        let question = ["--to", to, "--from", from];
        write(&[&lab.pod1, &lab.pod2])?;
        let used = |answer: &super::Answer| {
            let endpoints = answer.json["endpoints"].as_array().cloned().unwrap_or_default();
            endpoints.iter().filter(|endpoint| endpoint["used"] == true).count()
        };
        let answer = wait_for(&world, &question, |answer| used(answer) == 2)?;
        ensure!(answer.json["affinity"]["applies"] == true, "{:#}", answer.json);
        ensure!(answer.json["affinity"]["endpoint"].is_null(), "{:#}", answer.json);

        let first = lab.from(&lab.client).tcp(to).tally(1, super::PATIENCE)?;
        let first = *first.by_server().keys().next().context("no server")?;
        let [pod, other] = match first {
            "pod-1" => [&lab.pod1, &lab.pod2],
            _ => [&lab.pod2, &lab.pod1],
        };
        let answer = explain(&world, &question)?;
        let endpoint = answer.json["affinity"]["endpoint"].as_str().unwrap_or_default();
        let address: std::net::SocketAddr = endpoint.parse()?;
        ensure!(pod.ips().any(|ip| ip == address.ip()), "{first} answered: {:#}", answer.json);
        ensure!(used(&answer) == 1 && answer.codes().is_empty(), "{:#}", answer.json);
        lab.from(&lab.client).tcp(to).times(5).reaches(&[first]);

        write(&[other])?;
        let answer = wait_for(&world, &question, |answer| {
            answer.json["affinity"]["endpoint"].is_null() && used(answer) == 1
        })?;
        ensure!(answer.status == 0 && answer.codes().is_empty(), "{:#}", answer.json);
        lab.from(&lab.client).tcp(to).times(5).reaches(&[other.name.as_str()]);
    }
    Ok(())
}
