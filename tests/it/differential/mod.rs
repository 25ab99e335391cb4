//! The fake held against the kernel: the same transactions, the same answers, the same listings.

mod operation;
mod probes;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use nfnetlink::nft::{Batch, Error, Kernel, Socket, TABLE_OWNER};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt_fake_nftables::{Listing, Namespace, soak};
use shunt_testbed::{Netns, seed};

use self::operation::{Abilities, FAMILIES, Operation, TABLES, operation, whole_tables};

/// How many namespaces are used at a time, how many sequences of transactions a run tries in each,
/// and how many transactions each of these has at the most.
const WORKERS: u64 = 8;
const SEQUENCES: u32 = 32;
const LENGTH: usize = 40;

/// What has to be refused in every run, or it says little.
const REASONS: [&str; 20] = [
    "add a rule to chain: EINVAL",
    "add a rule to chain: EMLINK",
    "add a rule to chain: ENOENT",
    "add a rule to chain: EOPNOTSUPP",
    "add an element to: EEXIST",
    "add an element to: EINVAL",
    "add an element to: EMLINK",
    "add an element to: ENFILE",
    "add an element to: ENOENT",
    "add an element to: EOPNOTSUPP",
    "add chain: EOPNOTSUPP",
    "add set: EEXIST",
    "delete a rule of chain: ENOENT",
    "delete an element of: ENOENT",
    "delete chain: EBUSY",
    "delete chain: ENOENT",
    "delete table: ENOENT",
    "add table: EOPNOTSUPP",
    "add table: EPERM",
    "add an element to: EPERM",
];

/// One transaction.
#[derive(Debug, Clone)]
struct Transaction {
    operations: Vec<Operation>,
    /// Sent by the second socket of two.
    second: bool,
    generation: Generation,
    /// The socket is opened anew before.
    reopened: bool,
}

/// What the transaction says about the generation that it is made for.
#[derive(Debug, Clone, Copy)]
enum Generation {
    Any,
    Current,
    Stale,
}

fn transaction(kernel: Abilities) -> impl Strategy<Value = Transaction> {
    let generation = prop_oneof![
        6 => Just(Generation::Any),
        6 => Just(Generation::Current),
        1 => Just(Generation::Stale),
    ];
    let operations = prop_oneof![
        12 => proptest::collection::vec(operation(kernel), 1..5),
        2 => whole_tables(kernel),
        1 => Just(Vec::new()),
    ];
    let (second, reopened) = (prop::bool::weighted(0.2), prop::bool::weighted(0.05));
    (operations, second, generation, reopened).prop_map(
        |(operations, second, generation, reopened)| Transaction {
            operations,
            second,
            generation,
            reopened,
        },
    )
}

/// Two sockets of one namespace, of the kernel or the fake.
struct Side<K>([K; 2]);

impl<K: Kernel> Side<K> {
    fn commit(&mut self, transaction: &Transaction) -> Result<Result<(), Error>> {
        let kernel = &mut self.0[usize::from(transaction.second)];
        let now = kernel.generation()?.id;
        let mut batch = Batch::new(match transaction.generation {
            Generation::Any => None,
            Generation::Current => Some(now),
            Generation::Stale => Some(now.wrapping_sub(1)),
        });
        for operation in &transaction.operations {
            operation.write(kernel, &mut batch)?;
        }
        Ok(kernel.commit(&batch.finish()))
    }

    fn clear(&mut self) -> Result<()> {
        for family in FAMILIES {
            for table in TABLES {
                for kernel in &mut self.0 {
                    if kernel.table(family, table)?.is_some() {
                        let mut batch = Batch::new(None);
                        batch.delete_table(family, table);
                        // One of the two owns it.
                        _ = kernel.commit(&batch.finish());
                    }
                }
            }
        }
        Ok(())
    }
}

/// The answer as a value, the kernel's own words left out: they come and go with its versions.
fn answer(result: &Result<(), Error>) -> String {
    match result {
        Ok(()) => "taken".to_owned(),
        Err(Error::Refused(refusals)) => {
            let plain = refusals.iter().map(|refusal| {
                let mut refusal = refusal.clone();
                refusal.explanation = None;
                format!("\n  {refusal}")
            });
            plain.collect()
        }
        Err(error) => error.to_string(),
    }
}

fn compare(real: &mut Side<Socket>, fake: &mut Side<shunt_fake_nftables::Socket>) -> Result<()> {
    for family in FAMILIES {
        for table in TABLES {
            // Linux 5.14 lists the elements of a table for its owner only.
            let owner = real.0[0].table(family, table)?.and_then(|table| table.owner);
            let socket = usize::from(owner == Some(real.0[1].port()));
            let (real, fake) = (&mut real.0[socket], &mut fake.0[socket]);
            let (real, fake) =
                (Listing::of(real, family, table)?, Listing::of(fake, family, table)?);
            let (Some(real), Some(fake)) = (&real, &fake) else {
                ensure!(real == fake, "{family} {table}: kernel {real:?}, fake {fake:?}");
                continue;
            };
            let rules = |listing: &Listing| -> Vec<_> {
                listing.rules.iter().map(|rule| (rule.chain.clone(), rule.exprs.clone())).collect()
            };
            let same_rules = rules(real) == rules(fake);
            ensure!(same_rules, "{family} {table}: kernel {:?}, fake {:?}", real.rules, fake.rules);
            let rest = |listing: &Listing| Listing { rules: Vec::new(), ..listing.clone() };
            ensure!(
                rest(real) == rest(fake),
                "{family} {table}: kernel {:?}, fake {:?}",
                rest(real),
                rest(fake)
            );
        }
    }
    Ok(())
}

#[test]
fn the_fake_answers_as_the_kernel_does() -> Result<()> {
    let soak = soak();
    let abilities = probes::abilities()?;
    let features = abilities.features;
    // A refusal makes the kernel wait for all its processors; so several wait at a time.
    let mut total = Counts::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| scope.spawn(move || Netns::new()?.run(|| tried(worker, soak, abilities))))
            .collect();
        for worker in workers {
            let counts = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            total.taken += counts.taken;
            total.refused += counts.refused;
            total.reasons.extend(counts.reasons);
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let Counts { taken, refused, reasons } = total;
    assert!(taken > 1_000 && refused > 1_000, "{taken} taken, {refused} refused: too few");
    // Without owned tables there is no EPERM, and without late circles no EMLINK.
    let is_possible = |reason: &&str| match reason.rsplit(' ').next() {
        Some("EPERM") => features.table_flags & TABLE_OWNER != 0,
        Some("EMLINK") => abilities.late_circles,
        _ if *reason == "add table: EOPNOTSUPP" => abilities.unknown_flags_are_unsupported,
        _ if *reason == "add set: EEXIST" => features.set_updates,
        _ if *reason == "add chain: EOPNOTSUPP" => abilities.hook_changes_are_unsupported,
        _ => true,
    };
    let wanted = REASONS.into_iter().filter(is_possible);
    let missing = wanted.filter(|reason| !reasons.contains(*reason));
    let missing: Vec<&str> = missing.collect();
    assert!(missing.is_empty(), "was never refused: {missing:?}");
    Ok(())
}

/// Tries sequences in the namespace of this thread.
fn tried(worker: u64, soak: Option<u32>, abilities: Abilities) -> Result<Counts> {
    let real = Side([Socket::open()?, Socket::open()?]);
    let tried = RefCell::new((real, Counts::default()));
    let seed = seed(soak.is_none().then_some(0))?;
    let config = Config {
        cases: SEQUENCES * soak.unwrap_or(1),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed ^ worker),
        ..Config::default()
    };
    let sequences = proptest::collection::vec(transaction(abilities), 1..LENGTH);
    TestRunner::new(config)
        .run(&sequences, |transactions| {
            let (real, counts) = &mut *tried.borrow_mut();
            try_sequence(real, &transactions, abilities, counts)
                .map_err(|error| TestCaseError::fail(format!("{error:#}")))
        })
        .map_err(|failure| anyhow!("with SHUNT_SEED={seed}: {failure}"))?;
    Ok(tried.into_inner().1)
}

/// Waits until the socket with this port number owns no table: a child that another test starts has a copy
/// of it for a moment, and keeps it open.
fn disowned(kernel: &mut Socket, port: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut is_owner = || -> Result<bool> {
        for (family, table) in FAMILIES.into_iter().flat_map(|f| TABLES.map(|table| (f, table))) {
            if kernel.table(family, table)?.is_some_and(|table| table.owner == Some(port)) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    while is_owner()? {
        ensure!(Instant::now() < deadline, "the socket with port {port} stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    taken: u32,
    refused: u32,
    /// What was refused, and why.
    reasons: BTreeSet<String>,
}

/// Whether an element of the map with verdicts is refused because it is there.
fn refuses_a_verdict(result: &Result<(), Error>) -> bool {
    let Err(Error::Refused(refusals)) = result else { return false };
    refusals.iter().any(|r| r.object == "verdicts" && r.errno == Errno::EEXIST)
}

fn try_sequence(
    real: &mut Side<Socket>,
    transactions: &[Transaction],
    abilities: Abilities,
    counts: &mut Counts,
) -> Result<()> {
    real.clear()?;
    let namespace = Namespace::at_generation(real.0[0].generation()?.id);
    namespace.limit(abilities.features);
    let mut fake = Side([0, 1].map(|socket| namespace.open_at(real.0[socket].port())));
    for (number, transaction) in transactions.iter().enumerate() {
        if transaction.reopened {
            let socket = usize::from(transaction.second);
            let before = real.0[socket].port();
            real.0[socket].reconnect()?;
            disowned(&mut real.0[socket], before)?;
            fake.0[socket] = namespace.open_at(real.0[socket].port());
        }
        let by_kernel = real.commit(transaction)?;
        let by_fake = fake.commit(transaction)?;
        *if by_kernel.is_ok() { &mut counts.taken } else { &mut counts.refused } += 1;
        if let Err(Error::Refused(refusals)) = &by_kernel {
            let reasons = refusals.iter().map(|r| format!("{}: {:?}", r.operation, r.errno));
            counts.reasons.extend(reasons);
        }
        let repeated = !abilities.repeated_verdicts && refuses_a_verdict(&by_kernel);
        let (by_kernel, by_fake) = (answer(&by_kernel), answer(&by_fake));
        if repeated && by_kernel != by_fake {
            // From here on, the two may have different elements.
            return Ok(());
        }
        ensure!(
            by_kernel == by_fake,
            "{number}: {transaction:?}\nkernel: {by_kernel}\nfake: {by_fake}"
        );
        let generations = (real.0[0].generation()?.id, fake.0[0].generation()?.id);
        ensure!(
            generations.0 == generations.1,
            "{number}: {transaction:?}\ngeneration of the kernel and the fake: {generations:?}"
        );
        compare(real, &mut fake).with_context(|| format!("{number}: {transaction:?}"))?;
    }
    Ok(())
}
