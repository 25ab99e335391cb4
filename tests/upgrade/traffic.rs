//! Connections while one version replaces the other.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Agent, Protocol, Traffic};

use crate::world::{CLUSTER_IP, VERSION, Version, World, text};

/// How an agent ends.
type End = fn(Agent) -> Result<()>;

/// The ways in which an agent is replaced: how it ends, and whether the next one waits for that.
const WAYS: [(End, bool); 4] =
    [(Agent::stop, false), (Agent::kill, false), (Agent::stop, true), (Agent::kill, true)];

pub(crate) fn replaced() -> Result<()> {
    there_and_back(&World::new("")?)
}

/// Another version changes nothing, unless it has another layout.
pub(crate) fn unchanged_layout() -> Result<()> {
    let world = World::with_unchanged_layout()?;
    world.agent(Version::Previous, "")?.start()?.stop()?;
    let generation = world.lab.node.nft_generation()?;
    for version in Version::THERE_AND_BACK {
        let agent = world.agent(version, "")?.arg("--own-tables=false").start()?;
        let status = text(&world.command(version, &["status"])?);
        let own = VERSION[usize::from(version == Version::Previous)];
        ensure!(status.contains(&format!("shunt {own}")), "{version:?}: {status}");
        agent.stop()?;
    }
    assert_eq!(world.lab.node.nft_generation()?, generation, "something was written");
    there_and_back(&world)
}

/// New connections all the time, and one of each client that stays open, through upgrades and downgrades.
fn there_and_back(world: &World) -> Result<()> {
    let lab = &world.lab;
    let mut agent = world.agent(Version::Previous, "")?.start()?;
    world.assert_changes_apply()?;
    for (end, waits) in WAYS {
        let flows = [
            (&lab.client, Protocol::Tcp, "203.0.113.10:80"),
            (&lab.client, Protocol::Udp, CLUSTER_IP),
            (&lab.pod2, Protocol::Tcp, "[fd00:96::10]:80"),
            (&lab.pod1, Protocol::Udp, "[2001:db8:113::10]:80"),
            (&lab.node2, Protocol::Sctp, "192.0.2.10:30080"),
        ];
        let mut layouts = BTreeSet::from([layout(world)?]);
        let traffic = Traffic::start(flows, Duration::from_micros(200))?;
        for next in [Version::Current, Version::Previous] {
            traffic.more(50)?;
            let next = world.agent(next, "")?;
            agent = if waits {
                let next = next.spawn()?;
                next.wait_for_log(&["waiting until it ends"])?;
                end(agent)?;
                next.wait_ready()?;
                next
            } else {
                end(agent)?;
                traffic.more(20)?;
                next.start()?
            };
            traffic.more(50)?;
            layouts.insert(layout(world)?);
        }
        let delivered = traffic.stop();
        match layouts.len() {
            1 => delivered.all()?,
            _ => delivered.all_but_one_untranslated()?,
        }
    }
    world.assert_changes_apply()?;
    agent.stop()
}

/// A client keeps its endpoint, also if this version replaces a table of another layout. An earlier
/// version may not, and then the client's next endpoint counts.
pub(crate) fn affinity() -> Result<()> {
    let world = World::new("sessionAffinity: ClientIP")?;
    let mut known: Option<(String, Vec<String>)> = None;
    for version in Version::THERE_AND_BACK {
        let agent = world.agent(version, "")?.start()?;
        let layout = layout(&world)?;
        let client = world.lab.from(&world.lab.client);
        let tally = client.tcp("203.0.113.10:80").tally(10, Duration::from_secs(10))?;
        let reached = tally.servers().with_context(|| format!("{version:?}: {tally:?}"))?;
        let reached: Vec<String> = reached.into_iter().map(str::to_owned).collect();
        ensure!(reached.len() == 1, "{version:?}: {reached:?}");
        if let Some((before, endpoint)) = &known {
            let is_kept = *endpoint == reached;
            let may_differ = version == Version::Previous && *before != layout;
            ensure!(is_kept || may_differ, "{version:?}: {reached:?}, not {endpoint:?}");
        }
        known = Some((layout, reached));
        agent.stop()?;
    }
    Ok(())
}

/// What decides whether a version replaces the table: the comment with the number of its layout, and the
/// sets with their sizes.
fn layout(world: &World) -> Result<String> {
    let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
    let parts = ["\tcomment ", "\tset ", "\tmap ", "\t\ttype ", "\t\tsize "];
    let lines = table.lines().filter(|line| parts.iter().any(|part| line.starts_with(part)));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
