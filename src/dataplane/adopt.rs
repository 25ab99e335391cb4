//! Reading what the kernel holds of us: at the start, and whenever somebody else wrote.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::codec::{decode_key, decode_value, set_type, table_family};
use super::committed::{Committed, TableState, balancer_of};
use super::translate::{base_chain, expressions};
use crate::model::{Backend, Family};
use crate::nft::{Batch, DumpedChain, DumpedRule, Error, Socket};
use crate::plan::{
    Chain, ChainName, Frontend, FrontendKey, Key, LAYOUT_COMMENT, Outcome, Set, Surroundings,
    TABLE, Value, balancer, base_chains,
};

/// How often a listing is tried again because the rules changed under it.
const ATTEMPTS: usize = 20;

/// Reads the tables of both families.
pub(super) fn adopt(
    socket: &mut Socket,
    surroundings: &Surroundings,
) -> Result<(u32, Committed), Error> {
    retried(|| {
        let generation = socket.generation()?.id;
        let mut committed = Committed::default();
        for family in Family::ALL {
            let state = read_table(socket, surroundings, family)?;
            let ours = matches!(state, TableState::Ours { .. });
            committed.set_table(family, state);
            if ours {
                read_elements(socket, family, &mut committed)?;
            }
        }
        Ok((generation, committed))
    })
}

fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Interrupted) => {}
            other => return other,
        }
    }
    attempt()
}

fn read_table(
    socket: &mut Socket,
    surroundings: &Surroundings,
    family: Family,
) -> Result<TableState, Error> {
    let table = table_family(family);
    let Some(found) = socket.table(table, TABLE)? else {
        return Ok(TableState::Absent);
    };
    let sets = socket.sets(table, TABLE)?;
    let sets_fit = sets.len() == Set::ALL.len()
        && sets.iter().all(|found| {
            Set::from_name(&found.name).is_some_and(|set| found.is(&set_type(family, set)))
        });
    if found.comment.as_deref() != Some(LAYOUT_COMMENT) || found.flags != 0 || !sets_fit {
        return Ok(TableState::Unusable);
    }
    let mut rules: HashMap<String, Vec<DumpedRule>> = HashMap::new();
    for rule in socket.rules(table, TABLE)? {
        rules.entry(rule.chain.clone()).or_default().push(rule);
    }
    let expected: HashMap<ChainName, Chain> = base_chains(surroundings, family)
        .into_iter()
        .map(|c| (c.name, c))
        .collect();
    let mut chains = BTreeMap::new();
    for found in socket.chains(table, TABLE)? {
        let Some(name) = ChainName::parse(&found.name) else {
            return Ok(TableState::Unusable);
        };
        let wanted = expected
            .get(&name)
            .cloned()
            .unwrap_or_else(|| balancer(name));
        if !same_hook(&found, &wanted) {
            return Ok(TableState::Unusable);
        }
        let live = rules.remove(&found.name).unwrap_or_default();
        let right = implements(family, &wanted, &live);
        chains.insert(name, right.then_some(wanted));
    }
    Ok(TableState::Ours { chains })
}

/// True if both are regular chains, or base chains in the same place.
fn same_hook(found: &DumpedChain, wanted: &Chain) -> bool {
    match (&found.base, wanted.base) {
        (None, None) => true,
        (Some((kind, hook, priority, policy)), Some(base)) => {
            let base = base_chain(base);
            *kind == base.kind.word()
                && *hook == base.hook.number()
                && *priority == base.priority
                && *policy == libc::NF_ACCEPT as u32
        }
        _ => false,
    }
}

/// True if the kernel's rules are those of the chain. The kernel is not asked what it means by its
/// rules: ours are encoded, and its must say all that ours say.
fn implements(family: Family, chain: &Chain, live: &[DumpedRule]) -> bool {
    let mut batch = Batch::new(None);
    let name = chain.name.to_string();
    for rule in &chain.rules {
        let exprs = expressions(family, rule);
        batch.add_rule(table_family(family), TABLE, &name, &exprs, None);
    }
    let batch = batch.finish();
    let wanted: Vec<DumpedRule> = DumpedRule::of_batch(&batch).collect();
    wanted.len() == live.len() && wanted.iter().zip(live).all(|(w, l)| w.is_implemented_by(l))
}

/// The elements of one frontend, as they are found.
#[derive(Default)]
struct Pieces {
    verdicts: Vec<(Set, Option<Value>, Option<Arc<str>>)>,
    masquerade: Vec<(Set, Option<Arc<str>>)>,
    pool: Vec<(u32, Option<Value>)>,
}

fn read_elements(
    socket: &mut Socket,
    family: Family,
    committed: &mut Committed,
) -> Result<(), Error> {
    let mut frontends: HashMap<FrontendKey, Pieces> = HashMap::new();
    let mut labels: HashSet<Arc<str>> = HashSet::new();
    for set in Set::ALL {
        socket.elements(table_family(family), TABLE, set.name(), |element| {
            let Some(key) = decode_key(family, set, element.key) else {
                committed.strays.push((family, set, element.key.to_vec()));
                return;
            };
            let value = element.data.and_then(|data| decode_value(family, data));
            let label = element.comment.map(|comment| {
                labels.get(comment).cloned().unwrap_or_else(|| {
                    let label: Arc<str> = comment.into();
                    labels.insert(label.clone());
                    label
                })
            });
            match key {
                Key::Address(_) | Key::Hairpin(_) => committed.set_member(set, key, true),
                Key::Pool(frontend, index) => {
                    frontends
                        .entry(frontend)
                        .or_default()
                        .pool
                        .push((index, value));
                }
                Key::Frontend(frontend) => {
                    let pieces = frontends.entry(frontend).or_default();
                    if set.value().is_some() {
                        pieces.verdicts.push((set, value, label));
                    } else {
                        pieces.masquerade.push((set, label));
                    }
                }
            }
        })?;
    }
    for (key, mut pieces) in frontends {
        pieces.pool.sort_unstable_by_key(|(index, _)| *index);
        match assemble(key, &pieces) {
            Some(frontend) => committed.set_frontend(key, Some(frontend)),
            None => committed.strays.extend(pieces.keys(key).map(|(set, key)| {
                (
                    family,
                    set,
                    super::codec::encode_key(key).as_slice().to_vec(),
                )
            })),
        }
    }
    Ok(())
}

impl Pieces {
    fn keys(&self, key: FrontendKey) -> impl Iterator<Item = (Set, Key)> {
        let pool_set = match key {
            FrontendKey::Address(..) => Set::Endpoints,
            FrontendKey::NodePort(..) => Set::NodeportEndpoints,
        };
        let verdicts = self.verdicts.iter().map(|(set, ..)| *set);
        let masquerade = self.masquerade.iter().map(|(set, _)| *set);
        verdicts
            .chain(masquerade)
            .map(move |set| (set, Key::Frontend(key)))
            .chain(
                self.pool
                    .iter()
                    .map(move |(index, _)| (pool_set, Key::Pool(key, *index))),
            )
    }
}

/// Puts a frontend together; `None` if its pieces are not those that we would have written.
fn assemble(key: FrontendKey, pieces: &Pieces) -> Option<Frontend> {
    let [(set, Some(value), Some(label))] = &pieces.verdicts[..] else {
        return None;
    };
    let pool: Option<Arc<[Backend]>> = pieces
        .pool
        .iter()
        .zip(0..)
        .map(|((index, value), place)| match value {
            Some(Value::Backend(backend)) if *index == place => Some(*backend),
            _ => None,
        })
        .collect();
    let outcome = match (value, pool?) {
        (Value::Drop, pool) if pool.is_empty() => Outcome::Drop,
        (Value::Goto(ChainName::Reject), pool) if pool.is_empty() => Outcome::Reject,
        (Value::Goto(_), pool) if !pool.is_empty() => Outcome::Balance(pool),
        _ => return None,
    };
    let masquerade = !pieces.masquerade.is_empty();
    let frontend = Frontend {
        label: label.clone(),
        outcome,
        masquerade,
    };
    let verdict = frontend.verdict(key);
    let same_label = |(_, other): &(Set, Option<Arc<str>>)| other.as_ref() == Some(label);
    let consistent = verdict.set == *set
        && verdict.value.as_ref() == Some(value)
        && (balancer_of(&verdict).is_some() || pieces.pool.is_empty())
        && pieces.masquerade.iter().all(same_label);
    consistent.then_some(frontend)
}

/// Deletes our tables, both in one transaction. Returns how many there were.
///
/// # Errors
/// Whatever the kernel says; nothing is deleted then.
pub fn remove_tables(socket: &mut Socket) -> Result<usize, Error> {
    let mut batch = Batch::new(None);
    let mut count = 0;
    for family in Family::ALL {
        let table = table_family(family);
        if retried(|| socket.table(table, TABLE))?.is_some() {
            batch.delete_table(table, TABLE);
            count += 1;
        }
    }
    if count > 0 {
        socket.commit(&batch.finish())?;
    }
    Ok(count)
}
