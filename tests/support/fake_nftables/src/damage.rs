//! What others do to nf_tables while we run.

use nfnetlink::nft::{
    BaseChain, Batch, ChainType, DumpedElement, Elements, Error, Expr, Hook, Kernel, SetType,
    TableFamily, Verdict,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use shunt_core::plan::TABLE;

/// Something that somebody else does, in one transaction.
#[derive(Debug, Clone)]
pub enum Damage {
    /// Makes a table of their own.
    Elsewhere,
    /// Deletes our table.
    DeleteTable,
    /// Deletes an element of a set, which need not be there.
    DeleteElement(Index, Index, Like),
    /// Adds an element to a set.
    AddElement(Index, Index, Like),
    /// Deletes all elements of a set.
    FlushSet(Index),
    /// Deletes all rules of a chain.
    FlushChain(Index),
    /// Deletes a chain with its rules; refused for one that is in use.
    DeleteChain(Index),
    /// Adds a rule to a chain.
    AddRule(Index),
    /// Deletes a rule.
    DeleteRule(Index),
    /// Adds a chain of this name, which may be a base chain.
    AddChain(&'static str, bool),
    /// Adds a set.
    AddSet,
}

/// An element that is there, in a set, or one like it.
#[derive(Debug, Clone, Copy)]
pub enum Like {
    /// It itself.
    It,
    /// With that much more as its key.
    Key(u8),
    /// With the key of the element before it.
    KeyBefore,
}

fn like() -> impl Strategy<Value = Like> {
    prop_oneof![2 => Just(Like::It), 3 => (1..9_u8).prop_map(Like::Key), 1 => Just(Like::KeyBefore)]
}

/// What others may do, to the table of a family.
pub fn damage() -> impl Strategy<Value = (TableFamily, Damage)> {
    let pick = any::<Index>;
    let kind = prop_oneof![
        4 => Just(Damage::Elsewhere),
        1 => Just(Damage::DeleteTable),
        4 => (pick(), pick(), like())
            .prop_map(|(set, element, like)| Damage::DeleteElement(set, element, like)),
        4 => (pick(), pick(), like())
            .prop_map(|(set, element, like)| Damage::AddElement(set, element, like)),
        2 => pick().prop_map(Damage::FlushSet),
        2 => pick().prop_map(Damage::FlushChain),
        2 => pick().prop_map(Damage::DeleteChain),
        2 => pick().prop_map(Damage::AddRule),
        2 => pick().prop_map(Damage::DeleteRule),
        1 => (select(vec!["foreign", "lb-7", "affinity-5", "services"]), any::<bool>())
            .prop_map(|(name, base)| Damage::AddChain(name, base)),
        1 => Just(Damage::AddSet),
    ];
    (select(vec![TableFamily::Ip, TableFamily::Ip6]), kind)
}

impl Damage {
    /// Does it, where the kernel lets.
    ///
    /// # Errors
    /// Those of the kernel, but for refusals.
    pub fn inflict(&self, family: TableFamily, kernel: &mut dyn Kernel) -> Result<(), Error> {
        let mut batch = Batch::new(None);
        if kernel.table(family, TABLE)?.is_some() {
            self.write(kernel, family, &mut batch)?;
        }
        match kernel.commit(&batch.finish()) {
            // The table has an owner, or what was to be deleted is in use.
            Ok(()) | Err(Error::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write(
        &self,
        kernel: &mut dyn Kernel,
        family: TableFamily,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let sets = kernel.sets(family, TABLE)?;
        let chains = kernel.chains(family, TABLE)?;
        // One element, all, or one with another key or with the key of the one before.
        let mut elements = |set: &Index, pick: Option<&Index>, like: Like| {
            let set = &set.get(&sets).name;
            let mut count = 0;
            kernel.elements(family, TABLE, set, &mut |_| count += 1)?;
            let picked = pick.filter(|_| count > 0).map(|pick| pick.index(count));
            let (mut number, mut before) = (0, None);
            let mut chosen = Elements::new();
            kernel.elements(family, TABLE, set, &mut |element| {
                let own = element.key.to_vec();
                if picked.is_none_or(|picked| picked == number) {
                    let mut key = own.clone();
                    match (like, &before) {
                        (Like::It, _) | (Like::KeyBefore, None) => {}
                        (Like::Key(add), _) => {
                            key.last_mut()
                                .into_iter()
                                .for_each(|last| *last = last.wrapping_add(add));
                        }
                        (Like::KeyBefore, Some(before)) => key.clone_from(before),
                    }
                    let key_end = element.key_end.map(|_| &key[..]);
                    let (age, counter) = (None, None);
                    chosen.add(&DumpedElement { key: &key, key_end, age, counter, ..element });
                }
                (number, before) = (number + 1, Some(own));
            })?;
            Ok::<_, Error>((set.clone(), chosen))
        };
        match self {
            Damage::Elsewhere => batch.add_table(family, "other", 0, "of somebody else"),
            Damage::DeleteTable => batch.delete_table(family, TABLE),
            Damage::DeleteElement(set, element, like) => {
                let (set, elements) = elements(set, Some(element), *like)?;
                batch.delete_elements(family, TABLE, &set, &elements);
            }
            Damage::AddElement(set, element, like) => {
                let (set, elements) = elements(set, Some(element), *like)?;
                batch.add_elements(family, TABLE, &set, &elements);
            }
            Damage::FlushSet(set) => {
                let (set, elements) = elements(set, None, Like::It)?;
                batch.delete_elements(family, TABLE, &set, &elements);
            }
            Damage::FlushChain(chain) => {
                batch.flush_chain(family, TABLE, &chain.get(&chains).name);
            }
            Damage::DeleteChain(chain) => {
                batch.delete_chain(family, TABLE, &chain.get(&chains).name);
            }
            Damage::AddRule(chain) => {
                batch.add_rule(
                    family,
                    TABLE,
                    &chain.get(&chains).name,
                    &[Expr::Verdict(Verdict::Drop)],
                    None,
                );
            }
            Damage::DeleteRule(rule) => {
                let rules = kernel.rules(family, TABLE)?;
                if let (false, rule) = (rules.is_empty(), rule) {
                    let rule = rule.get(&rules);
                    let handle = rule.handle;
                    batch.delete_rule(family, TABLE, &rule.chain, handle);
                }
            }
            Damage::AddChain(name, is_base) => {
                let (kind, hook) = (ChainType::Filter, Hook::Forward);
                let base = is_base.then_some(BaseChain { kind, hook, priority: 7 });
                batch.add_chain(family, TABLE, name, base);
            }
            Damage::AddSet => {
                let kind = SetType::of(4, 4);
                batch.add_set(family, TABLE, "foreign", &kind);
            }
        }
        Ok(())
    }
}
