//! Tables of one version in the hands of the other.

use anyhow::{Context, Result, ensure};
use shunt_testbed::{EndpointSlice, Protocol, Service};

use crate::world::{CLUSTER_IP, PODS, Version, World, text};

/// The tables that outlive an agent.
const REMAINING: [&str; 2] = ["ip shunt", "ip6 shunt"];

/// Settings that add tables, sets and chains.
const EVERYTHING: &str = "shunt: {resetGoneEndpoints: true}\n";

/// Each version owns the tables, where the kernel has that, also those that the other has made.
pub(crate) fn owned() -> Result<()> {
    let world = World::new("")?;
    let is_owned = || -> Result<bool> {
        let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
        // The kernel shows the flags to nft 1.0.6 as numbers, to later ones by name.
        Ok(table.lines().any(|line| line.starts_with("\tflags ") && line.contains("owner")))
    };
    let mut kernel_can = None;
    for version in Version::THERE_AND_BACK {
        let agent = world.agent(version, "")?.start()?;
        let owned = is_owned()?;
        ensure!(owned == *kernel_can.get_or_insert(owned), "{version:?}: owned is {owned}");
        let deletion = world.lab.node.nft("delete table ip shunt");
        ensure!(!owned || deletion.is_err(), "{version:?}: another process deleted the table");
        // The other version's `cleanup` included.
        let output = world.command(version.other(), &["cleanup"])?;
        ensure!(!owned || output.status.code() == Some(1), "{version:?}: {}", text(&output));
        world.assert_changes_apply().with_context(|| format!("{version:?}"))?;
        agent.stop()?;
        ensure!(!is_owned()?, "{version:?}: the table still has an owner");
    }
    Ok(())
}

/// The kernel removes what belongs to the process only, and each version takes over or replaces the
/// tables that remain.
pub(crate) fn remaining() -> Result<()> {
    let world = World::new("")?;
    // Has a chain of its own.
    let hashed = Service::new("hashed").port("tcp", Protocol::Tcp, 80).cluster_ips(&["10.96.0.20"]);
    let hashed = hashed.metadata("annotations: {shunt.dev/load-balancing: source-hash}");
    let endpoint = EndpointSlice::v4("hashed").port("tcp", Protocol::Tcp, 8080);
    world
        .manifests
        .write("hashed.yaml", format!("{hashed}{}", endpoint.hosts(&[&world.lab.pod1])))?;
    for killed in [false, true] {
        let agent = world.agent(Version::Current, EVERYTHING)?.start()?;
        let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
        ensure!(table.contains("chain lb-source-hash"), "no chain of hashes:\n{table}");
        world.assert_changes_apply()?;
        if killed {
            agent.kill()?;
        } else {
            agent.stop()?;
        }
        assert_eq!(world.tables()?, REMAINING, "killed: {killed}");
        let agent = world.agent(Version::Previous, "")?.start()?;
        world.assert_changes_apply()?;
        agent.stop()?;
        assert_eq!(world.tables()?, REMAINING, "killed: {killed}");
        let left = chains(&world)?;
        // As the same version makes them on an empty node.
        let output = world.command(Version::Previous, &["cleanup"])?;
        ensure!(output.status.success(), "{}", text(&output));
        world.agent(Version::Previous, "")?.start()?.stop()?;
        assert_eq!(left, chains(&world)?);
    }
    Ok(())
}

/// The chains of the table of IPv4, in alphabetical order, without those for a number of endpoints.
fn chains(world: &World) -> Result<Vec<String>> {
    let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
    let names = table.lines().filter_map(|line| line.strip_prefix("\tchain ")?.strip_suffix(" {"));
    let names = names.filter(|name| !name.ends_with(char::is_numeric));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

/// Each version removes the tables of the other.
pub(crate) fn cleanup() -> Result<()> {
    let world = World::new("")?;
    for (by, made_by, settings) in [
        (Version::Previous, Version::Current, EVERYTHING),
        (Version::Current, Version::Previous, ""),
    ] {
        world.agent(made_by, settings)?.start()?.stop()?;
        world.lab.from(&world.lab.client).tcp(CLUSTER_IP).reaches(&PODS);
        let output = world.command(by, &["cleanup"])?;
        ensure!(output.status.success(), "{by:?}: {}", text(&output));
        assert_eq!(world.tables()?, [""; 0], "{by:?}");
        world.lab.from(&world.lab.client).tcp(CLUSTER_IP).unhandled();
    }
    Ok(())
}
