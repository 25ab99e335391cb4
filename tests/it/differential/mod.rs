//! The fake held against the kernel: the same transactions, the same answers, the same listings.

mod operation;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, ElementData, Elements, Error, Expr, Hook, Kernel, Register,
    SetData, SetType, Socket, TABLE_OWNER, TABLE_PERSIST, VerdictCode,
};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use shunt_fake_nftables::{Features, Listing, Namespace, soak};
use shunt_testbed::{Netns, seed};

use self::operation::{Abilities, FAMILIES, Operation, TABLES, operation, usual, whole_tables};

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
            // Of its rules the kernel says more than was sent.
            let same_rules = real.rules.len() == fake.rules.len()
                && real.rules.iter().zip(&fake.rules).all(|(real, fake)| {
                    fake.is_implemented_by(real) && fake.targets().eq(real.targets())
                });
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
    let features = Features {
        table_flags: table_flags()?,
        maps_as_sets: maps_as_sets()?,
        set_updates: set_updates()?,
        named_elements: named_elements()?,
        verdicts_as_values: verdicts_as_values()?,
    };
    let abilities = Abilities {
        features,
        late_circles: late_circles()?,
        exact_ranges: exact_ranges()?,
        hook_changes_are_unsupported: hook_changes_are_unsupported()?,
        unknown_flags_are_unsupported: unknown_flags_are_unsupported()?,
    };
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

/// The flags of tables that this kernel knows: persistent ones from 6.9 on.
fn table_flags() -> Result<u32> {
    const DORMANT: u32 = 0x1;
    let mut known = DORMANT;
    for flag in [TABLE_OWNER, TABLE_PERSIST] {
        let mut batch = Batch::new(None);
        batch.add_table(FAMILIES[0], "probe", known | flag, "");
        match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
            Ok(()) => known |= flag,
            Err(Error::Refused(all)) if all.iter().all(|it| it.errno == Errno::EOPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(known)
}

/// Whether a flag of a table that no kernel knows is called not supported.
fn unknown_flags_are_unsupported() -> Result<bool> {
    let mut batch = Batch::new(None);
    batch.add_table(FAMILIES[0], "probe", 0x80, "");
    match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
        Ok(()) => bail!("the kernel knows a flag of tables that it should not"),
        Err(Error::Refused(all)) => Ok(all.iter().all(|it| it.errno == Errno::EOPNOTSUPP)),
        Err(error) => Err(error.into()),
    }
}

/// Whether rules may look into a map as if it were a set.
fn maps_as_sets() -> Result<bool> {
    let look = Expr::InSet { set: MAP.to_owned(), key: KEY, negate: false };
    takes(Errno::EINVAL, &[look])
}

/// Whether a set that is added again makes another generation.
fn set_updates() -> Result<bool> {
    let (family, table, set) = (FAMILIES[0], TABLES[0], "ranges");
    let mut batch = Batch::new(None);
    batch.add_table(family, table, 0, "");
    batch.add_set(family, table, set, &usual(set));
    let batch = batch.finish();
    Netns::new()?.run(|| {
        let mut socket = Socket::open()?;
        socket.commit(&batch)?;
        let before = socket.generation()?.id;
        socket.commit(&batch)?;
        Ok(socket.generation()?.id != before)
    })
}

/// Whether the kernel says which element it refuses.
fn named_elements() -> Result<bool> {
    let (family, table, set) = (FAMILIES[0], TABLES[0], "numbers");
    let mut elements = Elements::new();
    for key in [[0; 4], [1; 4]] {
        elements.push(&key, Some(ElementData::Value(&[0; 8])), None);
    }
    let mut batch = Batch::new(None);
    batch.add_table(family, table, 0, "");
    batch.add_set(family, table, set, &usual(set));
    batch.add_elements(family, table, set, &elements);
    match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
        Err(Error::Refused(all)) => Ok(all[0].keys.len() == 1),
        answer => Err(anyhow!("elements with data in a set without: {answer:?}")),
    }
}

/// Whether rules may put the verdicts of a map into a register for values.
fn verdicts_as_values() -> Result<bool> {
    let (family, table, chain) = (FAMILIES[0], TABLES[0], "one");
    let mut batch = Batch::new(None);
    batch.add_table(family, table, 0, "");
    batch.add_chain(family, table, chain, None);
    batch.add_set(
        family,
        table,
        MAP,
        &SetType { data: Some(SetData::Verdict), ..SetType::of(4, 4) },
    );
    let load = Expr::NetworkHeader { offset: 0, length: 4, to: KEY };
    let look_up = Expr::MapValue { map: MAP.to_owned(), key: KEY, to: KEY };
    batch.add_rule(family, table, chain, &[load, look_up], None);
    match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
        Ok(()) => Ok(true),
        Err(Error::Refused(all)) if all.iter().all(|it| it.errno == Errno::EINVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel looks for circles when a transaction ends, and from base chains on.
fn late_circles() -> Result<bool> {
    let look_up = || Expr::MapVerdict { map: MAP.to_owned(), key: KEY };
    takes(Errno::EMLINK, &[look_up(), look_up()])
}

/// Whether the kernel refuses a range that a key without an end is part of.
fn exact_ranges() -> Result<bool> {
    let mut elements = Elements::new();
    elements.push(&[0, 1, 0, 0, 10, 0, 0, 0], None, None);
    let (first, last) = ([0, 1, 0, 0, 10, 0, 0, 0], [0, 1, 0, 0, 10, 0, 0, 3]);
    elements.push_range(&first, Some(&last), None, None);
    let (family, table, set) = (FAMILIES[0], TABLES[0], "ranges");
    let mut batch = Batch::new(None);
    batch.add_table(family, table, 0, "");
    batch.add_set(family, table, set, &usual(set));
    batch.add_elements(family, table, set, &elements);
    match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
        Ok(()) => Ok(false),
        Err(Error::Refused(all)) if all.iter().all(|it| it.errno == Errno::EEXIST) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel says EOPNOTSUPP to another hook for a base chain that is there, and not EEXIST.
fn hook_changes_are_unsupported() -> Result<bool> {
    let (family, table) = (FAMILIES[0], TABLES[0]);
    let mut batch = Batch::new(None);
    batch.add_table(family, table, 0, "");
    for hook in [Hook::Input, Hook::Prerouting] {
        let base = BaseChain { kind: ChainKind::Filter, hook, priority: 0 };
        batch.add_chain(family, table, "base", Some(base));
    }
    match Netns::new()?.run(|| Ok(Socket::open()?.commit(&batch.finish())))? {
        Err(Error::Refused(all)) if all[0].errno == Errno::EEXIST => Ok(false),
        Err(Error::Refused(all)) if all[0].errno == Errno::EOPNOTSUPP => Ok(true),
        answer => Err(anyhow!("another hook for a base chain: {answer:?}")),
    }
}

const MAP: &str = "verdicts";
const KEY: Register = Register(0);

/// Whether the kernel takes these rules one by one, in a chain to which the map leads, or refuses one
/// with that error. Linux 5.14 calls a circle ELOOP.
fn takes(refusal: Errno, rules: &[Expr]) -> Result<bool> {
    let (family, table, chain) = (FAMILIES[0], TABLES[0], "one");
    Netns::new()?.run(|| {
        let mut kernel = Socket::open()?;
        let mut batch = Batch::new(None);
        let mut elements = Elements::new();
        elements.push(&[0; 4], Some(ElementData::Verdict(VerdictCode::Goto, Some(chain))), None);
        batch.add_table(family, table, 0, "");
        batch.add_chain(family, table, chain, None);
        let map = SetType { data: Some(SetData::Verdict), ..SetType::of(4, 4) };
        batch.add_set(family, table, MAP, &map);
        batch.add_elements(family, table, MAP, &elements);
        kernel.commit(&batch.finish())?;
        for rule in rules {
            let mut batch = Batch::new(None);
            let load = Expr::NetworkHeader { offset: 0, length: 4, to: KEY };
            batch.add_rule(family, table, chain, &[load, rule.clone()], None);
            match kernel.commit(&batch.finish()) {
                Ok(()) => {}
                Err(Error::Refused(all))
                    if all.iter().all(|it| [refusal, Errno::ELOOP].contains(&it.errno)) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    })
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
            try_sequence(real, &transactions, abilities.features, counts)
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

fn try_sequence(
    real: &mut Side<Socket>,
    transactions: &[Transaction],
    features: Features,
    counts: &mut Counts,
) -> Result<()> {
    real.clear()?;
    let namespace = Namespace::at_generation(real.0[0].generation()?.id);
    namespace.limit(features);
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
        let (by_kernel, by_fake) = (answer(&by_kernel), answer(&by_fake));
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
