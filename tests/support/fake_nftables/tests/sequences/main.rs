//! The dataplane over the fake: whatever happens, it ends up with what a fresh start would make.
#![allow(clippy::print_stdout, reason = "long runs say how far they are")]

mod content;
mod steps;
mod sweep;
mod trouble;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, anyhow};
use nfnetlink::nft::{Batch, Kernel as _, Socket, TABLE_OWNER, TABLE_PERSIST, TableFamily};
use nix::errno::Errno;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt::dataplane::Ownership;
use shunt_core::model::Change;
use shunt_core::plan::Options;
use shunt_fake_nftables::{Damage, Features, Ipv6, Namespace, damage, soak};
use shunt_testbed::{Netns, seed};

use trouble::{Trouble, trouble};
use world::World;

/// How many threads there are, how many sequences each goes through, and how many rounds each of
/// these has at the most.
const WORKERS: u64 = 2;
const SEQUENCES: u32 = 40;
const ROUNDS: usize = 50;
/// How many sequences the kernel goes through, too.
const BESIDE: u32 = 12;
/// How many sequences of a run wait until what was refused is tried again by itself.
const PATIENT: usize = 6;

/// After so many rounds each, who waits for a long run is told.
const TOLD: usize = 100_000;

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    Changes(Vec<Change>),
    Configure(Options),
    /// The agent ends, and another one begins.
    Restart(Ownership),
    Tidy,
    /// Somebody else does something.
    Damage(TableFamily, Damage),
    /// A client learns which backend it has.
    Learn(usize, u8),
    /// The kernel begins to refuse new elements of a frontend.
    Refuse(Index, Errno),
    /// The kernel does not do that any more.
    Relent,
}

/// Something that happens, and what goes wrong meanwhile, call by call.
#[derive(Debug, Clone)]
struct Round {
    step: Step,
    troubles: Vec<Trouble>,
}

fn step() -> impl Strategy<Value = Step> {
    let ownership =
        select(vec![Ownership::Own, Ownership::Own, Ownership::Leave, Ownership::Share]);
    let errno = select(vec![Errno::ENFILE, Errno::EEXIST, Errno::EINVAL]);
    prop_oneof![
        40 => vec(shunt_fake_nftables::change(), 1..6).prop_map(Step::Changes),
        2 => shunt_fake_nftables::options().prop_map(Step::Configure),
        4 => ownership.prop_map(Step::Restart),
        4 => Just(Step::Tidy),
        6 => damage().prop_map(|(family, damage)| Step::Damage(family, damage)),
        6 => (0..64_usize, 1..4_u8).prop_map(|(pick, client)| Step::Learn(pick, client)),
        1 => (any::<Index>(), errno).prop_map(|(pick, errno)| Step::Refuse(pick, errno)),
        2 => Just(Step::Relent),
    ]
}

fn round() -> impl Strategy<Value = Round> {
    let troubles = prop_oneof![2 => Just(Vec::new()), 1 => vec(trouble(), 1..30)];
    (step(), troubles).prop_map(|(step, troubles)| Round { step, troubles })
}

#[test]
fn whatever_happens_it_ends_as_after_a_fresh_start() -> Result<()> {
    let (rounds, patient) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = |worker| {
            let (rounds, patient) = (&rounds, &patient);
            scope.spawn(move || tried(worker, rounds, patient))
        };
        let workers: Vec<_> = (0..WORKERS).map(work).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let rounds = rounds.into_inner();
    println!("{rounds} rounds, each as after a fresh start");
    assert!(rounds > 1_000, "too few");
    Ok(())
}

fn tried(worker: u64, count: &AtomicUsize, patient: &AtomicUsize) -> Result<()> {
    let check = |ipv6: Ipv6, rounds: Vec<Round>| -> Result<()> {
        let mut world = World::new(ipv6);
        for (number, round) in rounds.iter().enumerate() {
            let before = count.fetch_add(1, Ordering::Relaxed);
            if (before + 1).is_multiple_of(TOLD) {
                println!("{} rounds", before + 1);
            }
            world.round(round).with_context(|| format!("round {number}: {round:?}"))?;
        }
        let patience = patient.fetch_add(1, Ordering::Relaxed) < PATIENT;
        world.finish(patience)
    };
    let ipv6 = select(vec![Ipv6::Present, Ipv6::Present, Ipv6::TablesOnly, Ipv6::Absent]);
    run(worker, SEQUENCES, (ipv6, vec(round(), 1..ROUNDS)), |(ipv6, rounds)| check(ipv6, rounds))
}

/// Beside the kernel, the agent and others who do all sorts of things to its tables, but for rules,
/// which have numbers of the kernel's.
#[test]
fn the_kernel_answers_and_lists_as_the_fake_does() -> Result<()> {
    let damage = damage().prop_filter("by number", |(_, it)| !matches!(it, Damage::DeleteRule(_)));
    let round = (vec(shunt_fake_nftables::change(), 1..6), vec(damage, 0..12));
    run(0, BESIDE, vec(round, 1..ROUNDS / 4), |rounds| {
        let netns = Netns::new()?;
        let table_flags = table_flags(&netns)?;
        let open = move || netns.run(|| Ok(Socket::open()?)).expect("a socket");
        let features = Features { table_flags, ..Features::default() };
        let mut world = World::over(Namespace::beside(open)?, features);
        // The tables of an owner refuse everything.
        world.calm(&Step::Restart(Ownership::Share))?;
        for (changes, damage) in rounds {
            let step = Step::Changes(changes);
            world.round(&Round { step, troubles: Vec::new() })?;
            let damage = damage.into_iter().map(|(family, it)| Step::Damage(family, it));
            damage.into_iter().try_for_each(|step| world.happen(&step))?;
        }
        let step = Step::Restart(Ownership::Own);
        world.round(&Round { step, troubles: Vec::new() })?;
        world.finish(false)
    })
}

/// The flags that tables can have: some for the lifetime of their owner are of Linux 6.9.
fn table_flags(netns: &Netns) -> Result<u32> {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, "probe", TABLE_OWNER | TABLE_PERSIST, "");
    batch.delete_table(TableFamily::Ip, "probe");
    let taken = netns.run(|| Ok(Socket::open()?.commit(&batch.finish()).is_ok()))?;
    Ok(Features::default().table_flags & if taken { u32::MAX } else { !TABLE_PERSIST })
}

/// Checks that many random sequences.
fn run<S: Strategy>(
    worker: u64,
    sequences: u32,
    strategy: S,
    check: impl Fn(S::Value) -> Result<()>,
) -> Result<()> {
    let soak = soak();
    let seed = seed(soak.is_none().then_some(0))?;
    let config = Config {
        cases: sequences * soak.unwrap_or(1),
        failure_persistence: None,
        max_shrink_iters: 50 * sequences,
        rng_seed: RngSeed::Fixed(seed ^ worker),
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&strategy, |value| {
            check(value).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|failure| anyhow!("with SHUNT_SEED={seed}: {failure}"))
}
