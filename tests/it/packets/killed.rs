//! The agent is killed at any moment: nobody who uses Services notices, and the next one goes on
//! from what there is.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Host, Outcome, Protocol, Traffic, probe};

use crate::world::{CLUSTER_CIDR, World, cluster_ip_service, manifest, web};

/// How many agents are killed, and how much longer each lives than the one before: until some have
/// written more than once.
const KILLED: u32 = 25;
const LONGER: Duration = Duration::from_millis(12);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

const STICKY: &str = "10.96.0.20:80";

/// Services that are rewritten.
const OTHERS: u8 = 40;

/// Asks the servers of [`web`](crate::world::web) without end while something is done; fails if they
/// could not be reached once.
fn while_asking(world: &World, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let flows = [
        (&world.lab.client, Protocol::Tcp, "10.96.0.10:80"),
        (&world.lab.client, Protocol::Udp, "203.0.113.10:80"),
        (&world.lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
        (&world.lab.node, Protocol::Sctp, "192.0.2.10:30080"),
    ];
    let traffic = Traffic::start(flows, Duration::ZERO)?;
    work()?;
    traffic.stop().all()
}

/// Every round gives it other endpoints, every second round another address.
fn other_service(number: u8, pods: &[&Host; 3], round: usize) -> String {
    let third = 96 + round / 2 % 2;
    let ips = [format!("10.{third}.1.{number}"), format!("fd00:96::{third}:{number:x}")];
    let name = format!("other-{number}");
    let service = cluster_ip_service(&name, &[&ips[0], &ips[1]]);
    manifest(&service, &name, &pods[..round % 4])
}

fn file(number: u8) -> String {
    format!("other-{number}.yaml")
}

/// The server that a client of the sticky Service has.
fn sticky_server(world: &World) -> Result<String> {
    let asked = world.lab.client.run(|| probe(Protocol::Tcp, None, STICKY.parse()?, PATIENCE))?;
    match asked {
        Outcome::Reached { server, .. } => Ok(server),
        other => anyhow::bail!("{STICKY}: {other}"),
    }
}

/// What the counter of a cluster IP says.
fn packets(world: &World) -> Result<u64> {
    let map = world.lab.node.output("nft", &["list", "map", "ip", "shunt", "service-ips"])?;
    let element = map.split("10.96.0.10 . tcp . 80 counter packets ").nth(1);
    let number = element.and_then(|rest| rest.split(' ').next());
    Ok(number.with_context(|| format!("no counter in\n{map}"))?.parse()?)
}

#[test]
fn agents_killed_while_services_change_are_not_noticed() -> Result<()> {
    let world = World::with_web()?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let sticky = cluster_ip_service("sticky", &["10.96.0.20"]).spec("sessionAffinity: ClientIP");
    world.manifests.write("sticky.yaml", manifest(&sticky, "sticky", &pods))?;
    world.start()?.kill()?;
    let mut connection = world.lab.from(&world.lab.client).connect("10.96.0.10:80")?;
    let server = sticky_server(&world)?;
    let mut counted = packets(&world)?;
    ensure!(counted > 0, "nothing is counted");

    while_asking(&world, || {
        let mut written = 0;
        for number in 0..KILLED {
            let agent = world.agent(CLUSTER_CIDR)?.spawn()?;
            let start = Instant::now();
            while start.elapsed() < LONGER * number {
                let other = (written % usize::from(OTHERS)) as u8;
                let round = written / usize::from(OTHERS);
                world.manifests.write(&file(other), other_service(other, &pods, round))?;
                written += 1;
            }
            agent.kill()?;
            connection.server(PATIENCE)?;
            assert_eq!(sticky_server(&world)?, server);
            let now = packets(&world)?;
            ensure!(now >= counted, "{now} packets after {counted}");
            counted = now;
        }
        Ok(())
    })?;

    // The last one makes up for what the others had no time for.
    world.agent(CLUSTER_CIDR)?.start()?.kill()?;
    connection.server(PATIENCE)?;
    assert_eq!(sticky_server(&world)?, server);
    ensure!(packets(&world)? >= counted);
    Ok(())
}

/// Programs once, under strace with these options; where the trace is.
fn traced(world: &World, options: &[&str]) -> Result<PathBuf> {
    let trace = world.manifests.path().with_file_name("trace");
    let name = trace.display().to_string();
    let calls = "trace=sendto,recvmsg";
    let strace = [&["strace", "-f", "-qq", "-o", &name, "-e", calls][..], options].concat();
    world.agent(CLUSTER_CIDR)?.wrapper(&strace).once()?;
    Ok(trace)
}

/// How many calls of that name a trace has until the commit, which is the largest `sendto`, or its answer.
fn calls_until_commit(trace: &str, call: &str) -> Result<usize> {
    let sent = |line: &str| -> Option<usize> {
        line.contains("sendto(").then(|| line.rsplit(" = ").next()?.trim().parse().ok())?
    };
    let largest = trace.lines().enumerate().max_by_key(|(_, line)| sent(line));
    let (commit, _) = largest.filter(|(_, line)| sent(line).is_some()).context("no commit")?;
    let before = trace.lines().take(commit).filter(|line| line.contains(call)).count();
    Ok(before + 1)
}

/// A commit is one system call, `sendto`; the answer is read by the next one.
#[test]
fn an_agent_killed_before_or_after_a_system_call_leaves_all_or_nothing() -> Result<()> {
    let world = World::with_web()?;
    // As many as before: other chains would be a transaction of their own.
    let (former, new) = ([&world.lab.pod1, &world.lab.pod2], [&world.lab.pod2, &world.lab.pod3]);
    let write = |pods: &[&Host]| world.manifests.write("web.yaml", manifest(&web(), "web", pods));
    let program = || {
        let output = world.agent(CLUSTER_CIDR)?.once()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        world.lab.node.ruleset()
    };
    write(&former)?;
    let before = program()?;
    write(&new)?;
    let trace = fs::read_to_string(traced(&world, &[])?)?;
    let after = world.lab.node.ruleset()?;
    ensure!(after != before, "nothing was written");

    let mut outcomes = [0, 0];
    for call in ["sendto", "recvmsg"] {
        // How many come before the commit does not change, how many stale flows there are after it does.
        let commit = calls_until_commit(&trace, call)?;
        for at in [1, commit / 2, commit - 1, commit, commit + 1] {
            write(&former)?;
            assert_eq!(program()?, before);
            write(&new)?;
            let generation = world.lab.node.nft_generation()?;
            let inject = format!("inject={call}:signal=SIGKILL:when={at}");
            let trace = fs::read_to_string(traced(&world, &["-e", &inject])?)?;
            ensure!(trace.contains("killed by SIGKILL"), "not killed at {call} {at}:\n{trace}");
            let left = world.lab.node.ruleset()?;
            let committed = world.lab.node.nft_generation()? != generation;
            outcomes[usize::from(committed)] += 1;
            assert!(left == *if committed { &after } else { &before }, "{call} {at}: {left:?}");
            let servers = if committed { ["pod-2", "pod-3"] } else { ["pod-1", "pod-2"] };
            world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&servers);
            assert_eq!(program()?, after, "after {call} {at}");
        }
    }
    ensure!(outcomes[0] > 0 && outcomes[1] > 0, "nothing and all: {outcomes:?}");
    Ok(())
}
