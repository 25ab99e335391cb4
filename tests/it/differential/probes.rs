//! Finds out what this kernel has of nf_tables: by trying, each time in a new namespace.

use anyhow::{Context as _, Result, bail, ensure};
use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, ElementData, Elements, Error, Expr, Hook, Kernel, Refusal,
    Register, SetData, SetType, Socket, TABLE_OWNER, TABLE_PERSIST, Verdict, Wanted,
};
use nix::errno::Errno;
use shunt_fake_nftables::Features;
use shunt_testbed::Netns;

use super::operation::{Abilities, FAMILIES, TABLES, usual};

const MAP: &str = "verdicts";
const CHAIN: &str = "one";
const KEY: Register = Register(0);

pub(crate) fn abilities() -> Result<Abilities> {
    Ok(Abilities {
        features: Features {
            table_flags: table_flags()?,
            maps_as_sets: maps_as_sets()?,
            set_updates: set_updates()?,
            named_elements: named_elements()?,
            verdicts_as_values: verdicts_as_values()?,
            ..Features::default()
        },
        late_circles: late_circles()?,
        exact_ranges: exact_ranges()?,
        hook_changes_are_unsupported: hook_changes_are_unsupported()?,
        unknown_flags_are_unsupported: unknown_flags_are_unsupported()?,
        repeated_verdicts: repeated_verdicts()?,
    })
}

/// Commits one transaction. Returns what the kernel refused of it, which is nothing if it took all.
fn commit(socket: &mut Socket, fill: impl FnOnce(&mut Batch)) -> Result<Vec<Refusal>> {
    let mut batch = Batch::new(None);
    fill(&mut batch);
    match socket.commit(&batch.finish()) {
        Ok(()) => Ok(Vec::new()),
        Err(Error::Refused(refusals)) => Ok(refusals),
        Err(error) => Err(error.into()),
    }
}

/// Commits one transaction in a new namespace.
fn once(fill: impl FnOnce(&mut Batch) + Send) -> Result<Vec<Refusal>> {
    Netns::new()?.run(|| commit(&mut Socket::open()?, fill))
}

/// True if nothing was refused, false if all refusals have one of these errors.
fn taken(refusals: &[Refusal], errors: &[Errno]) -> Result<bool> {
    match refusals {
        [] => Ok(true),
        all if all.iter().all(|refusal| errors.contains(&refusal.errno)) => Ok(false),
        other => bail!("neither taken nor refused with {errors:?}: {other:?}"),
    }
}

/// Adds a table, and a set as it mostly is.
fn add_set(batch: &mut Batch, set: &str) {
    batch.add_table(FAMILIES[0], TABLES[0], 0, "");
    batch.add_set(FAMILIES[0], TABLES[0], set, &usual(set));
}

fn add_elements(batch: &mut Batch, set: &str, fill: impl FnOnce(&mut Elements)) {
    let mut elements = Elements::new();
    fill(&mut elements);
    batch.add_elements(FAMILIES[0], TABLES[0], set, &elements);
}

fn add_rule(batch: &mut Batch, look_up: Expr) {
    let load = Expr::network(0, 4, KEY);
    batch.add_rule(FAMILIES[0], TABLES[0], CHAIN, &[load, look_up], None);
}

fn look_up(wanted: Wanted) -> Expr {
    Expr::Lookup { set: MAP.to_owned(), key: KEY, wanted }
}

/// Adds a map of verdicts without counters, and a chain.
fn add_map_and_chain(batch: &mut Batch) {
    batch.add_table(FAMILIES[0], TABLES[0], 0, "");
    batch.add_chain(FAMILIES[0], TABLES[0], CHAIN, None);
    let map = SetType { data: Some(SetData::Verdict), ..SetType::of(4, 4) };
    batch.add_set(FAMILIES[0], TABLES[0], MAP, &map);
}

/// The flags of tables that this kernel knows: persistent ones from 6.9 on.
fn table_flags() -> Result<u32> {
    const DORMANT: u32 = 0x1;
    let mut known = DORMANT;
    for flag in [TABLE_OWNER, TABLE_PERSIST] {
        let refused = once(|batch| batch.add_table(FAMILIES[0], "probe", known | flag, ""))?;
        if taken(&refused, &[Errno::EOPNOTSUPP])? {
            known |= flag;
        }
    }
    Ok(known)
}

/// Whether a flag of a table that no kernel knows is called not supported.
fn unknown_flags_are_unsupported() -> Result<bool> {
    let refused = once(|batch| batch.add_table(FAMILIES[0], "probe", 0x80, ""))?;
    ensure!(!refused.is_empty(), "the kernel knows a flag of tables that it should not");
    Ok(refused.iter().all(|it| it.errno == Errno::EOPNOTSUPP))
}

/// Whether rules may look into a map as if it were a set.
fn maps_as_sets() -> Result<bool> {
    takes(Errno::EINVAL, &[look_up(Wanted::Member)])
}

/// Whether a set that is added again makes another generation.
fn set_updates() -> Result<bool> {
    Netns::new()?.run(|| {
        let mut socket = Socket::open()?;
        let mut generation = || -> Result<u32> {
            let refused = commit(&mut socket, |batch| add_set(batch, "ranges"))?;
            ensure!(refused.is_empty(), "a set: {refused:?}");
            Ok(socket.generation()?.id)
        };
        Ok(generation()? != generation()?)
    })
}

/// Whether the kernel says which element it refuses.
fn named_elements() -> Result<bool> {
    let refused = once(|batch| {
        add_set(batch, "numbers");
        add_elements(batch, "numbers", |elements| {
            for key in [[0; 4], [1; 4]] {
                elements.push(&key, Some(ElementData::Value(&[0; 8])), None);
            }
        });
    })?;
    let first = refused.first().context("the kernel takes elements with data in a set without")?;
    Ok(first.keys.len() == 1)
}

/// Whether rules may put the verdicts of a map into a register for values.
fn verdicts_as_values() -> Result<bool> {
    let refused = once(|batch| {
        add_map_and_chain(batch);
        add_rule(batch, look_up(Wanted::Value(KEY)));
    })?;
    taken(&refused, &[Errno::EINVAL])
}

/// Whether the kernel looks for circles when a transaction ends, and from base chains on.
fn late_circles() -> Result<bool> {
    takes(Errno::EMLINK, &[look_up(Wanted::Verdict), look_up(Wanted::Verdict)])
}

/// Whether the kernel refuses a range that a key without an end is part of.
fn exact_ranges() -> Result<bool> {
    let refused = once(|batch| {
        add_set(batch, "ranges");
        add_elements(batch, "ranges", |elements| {
            elements.push(&[0, 1, 0, 0, 10, 0, 0, 0], None, None);
            let (first, last) = ([0, 1, 0, 0, 10, 0, 0, 0], [0, 1, 0, 0, 10, 0, 0, 3]);
            elements.push_range(&first, Some(&last), None, None);
        });
    })?;
    Ok(!taken(&refused, &[Errno::EEXIST])?)
}

/// Whether the kernel says EOPNOTSUPP to another hook for a base chain that is there, and not EEXIST.
fn hook_changes_are_unsupported() -> Result<bool> {
    let refused = once(|batch| {
        batch.add_table(FAMILIES[0], TABLES[0], 0, "");
        for hook in [Hook::Input, Hook::Prerouting] {
            let base = BaseChain { kind: ChainKind::Filter, hook, priority: 0 };
            batch.add_chain(FAMILIES[0], TABLES[0], "base", Some(base));
        }
    })?;
    match refused.first().map(|refusal| refusal.errno) {
        Some(Errno::EEXIST) => Ok(false),
        Some(Errno::EOPNOTSUPP) => Ok(true),
        other => bail!("another hook for a base chain: {other:?}"),
    }
}

/// Whether the kernel takes an element of a map with verdicts that is there already. Linux 5.14 compares the
/// chain of a verdict that has none, which is that of the verdict before.
fn repeated_verdicts() -> Result<bool> {
    let refused = once(|batch| {
        add_set(batch, MAP);
        batch.add_chain(FAMILIES[0], TABLES[0], CHAIN, None);
        add_elements(batch, MAP, |elements| {
            for (key, chain) in [([0; 4], None), ([1; 4], Some(CHAIN)), ([0; 4], None)] {
                let verdict = chain.map_or(Verdict::Drop, Verdict::Goto);
                elements.push(&key, Some(ElementData::Verdict(verdict)), None);
            }
        });
    })?;
    taken(&refused, &[Errno::EEXIST])
}

/// Whether the kernel takes these rules one by one, in a chain to which the map leads, or refuses one
/// with that error. Linux 5.14 calls a circle ELOOP.
fn takes(refusal: Errno, rules: &[Expr]) -> Result<bool> {
    Netns::new()?.run(|| {
        let mut socket = Socket::open()?;
        let prepared = commit(&mut socket, |batch| {
            add_map_and_chain(batch);
            add_elements(batch, MAP, |elements| {
                let verdict = ElementData::Verdict(Verdict::Goto(CHAIN));
                elements.push(&[0; 4], Some(verdict), None);
            });
        })?;
        ensure!(prepared.is_empty(), "a map with verdicts: {prepared:?}");
        for rule in rules {
            let refused = commit(&mut socket, |batch| add_rule(batch, rule.clone()))?;
            if !taken(&refused, &[refusal, Errno::ELOOP])? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
