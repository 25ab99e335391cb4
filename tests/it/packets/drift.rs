//! What others do to our tables while the agent runs, where they can.

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Agent, eventually};

use crate::world::World;

/// What somebody may do.
const DAMAGE: [&str; 5] = [
    "flush ruleset",
    "delete table ip6 shunt",
    "flush map ip shunt service-ips",
    "insert rule ip shunt nat-prerouting drop",
    "flush chain ip shunt services",
];

/// Waits until the rules are these again.
fn wait_for(world: &World, wanted: &[String], agent: &Agent) -> Result<()> {
    eventually("the repair", || Ok((world.lab.node.ruleset()? == wanted).then_some(())))
        .with_context(|| format!("{:?}\n{}", world.rules(), agent.log()))
}

#[test]
fn what_is_owned_cannot_be_damaged() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.start()?;
    let wanted = world.lab.node.ruleset()?;
    // Before kernel 6.9 no process can own tables in a way that outlives it; then they are repaired.
    let owned = world.tables_are_owned()?;
    for damage in DAMAGE {
        let refused = world.lab.node.nft(damage).is_err();
        ensure!(refused == (owned && damage != "flush ruleset"), "{damage}");
        if !owned {
            wait_for(&world, &wanted, &agent)?;
        }
        assert_eq!(world.lab.node.ruleset()?, wanted, "after {damage}");
        world.assert_web_works();
    }
    assert_eq!(agent.log().contains("another process modified"), !owned);
    Ok(())
}
