//! Whatever the order of changes, the kernel ends up as after a fresh start.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt_core::model::Change;
use shunt_fake_nftables::change;
use shunt_testbed::{Netns, seed};

use super::cluster::dataplane;

fn rounds() -> impl Strategy<Value = Vec<Vec<Change>>> {
    proptest::collection::vec(proptest::collection::vec(change(), 1..6), 1..8)
}

#[test]
fn any_sequence_of_changes_ends_as_a_fresh_start_does() -> Result<()> {
    let seed = seed(0)?;
    // Side by side, because it is the longest test.
    thread::scope(|scope| {
        let other = scope.spawn(|| half_of_them(seed.wrapping_add(1)));
        half_of_them(seed)?;
        other.join().map_err(|_| anyhow!("a panic"))?
    })
    .with_context(|| format!("SHUNT_SEED={seed}"))
}

fn half_of_them(seed: u64) -> Result<()> {
    // Half of PROPTEST_CASES altogether, 128 without it: the longer sequences are those of the fake.
    let cases = Config::default().cases.div_ceil(4);
    let rng_seed = RngSeed::Fixed(seed);
    let config = Config { cases, failure_persistence: None, rng_seed, ..Config::default() };
    let check = |rounds: Vec<Vec<Change>>| -> Result<()> {
        let ns = Netns::new()?;
        let mut running = dataplane(&ns, Vec::new())?;
        running.sync()?;
        for round in &rounds {
            running.apply_all(round.iter().cloned());
            running.sync()?;
        }
        running.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
        assert!(!running.has_unused_chains(), "an unused chain could not be deleted");
        let fresh = Netns::new()?;
        dataplane(&fresh, rounds.concat())?.sync()?;
        assert_eq!(ns.ruleset()?, fresh.ruleset()?);
        // And a restart agrees with what is there.
        assert_eq!(dataplane(&ns, rounds.concat())?.sync()?, None);
        Ok(())
    };
    TestRunner::new(config)
        .run(&rounds(), |rounds| {
            check(rounds).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|failure| anyhow!("{failure}"))
}
