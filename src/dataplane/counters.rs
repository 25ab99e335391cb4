//! Continues the counters of frontends when their verdicts change.
//!
//! Each element of a verdict map counts the new connections of its frontend. The kernel has no
//! message for another verdict: a transaction deletes the element and adds a new one, whose counter
//! would start at zero. So the agent reads the counters of the elements that a transaction replaces,
//! and the new elements start at these numbers. Connections between the reading and the commit are
//! not counted.

use std::sync::Arc;

use foldhash::HashMap;
use nfnetlink::nft::{Counter, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Element, Frontend, FrontendKey, Key, Set, Value};

use super::codec::{Bytes, encode_key};
use super::listing::look_up;
use super::record::{KernelRecord, Stray, TableState};

/// The maps in which the kernel has an element of a frontend with its counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CountedIn {
    /// The map of its verdict.
    main: bool,
    /// The map of its short circuit.
    short_circuit: bool,
}

impl CountedIn {
    /// Returns the maps for a frontend that changes from `old` to `new`, or becomes known. Another
    /// service port starts at zero.
    pub(super) fn of(
        record: &KernelRecord,
        key: FrontendKey,
        old: Option<&Frontend>,
        new: &Frontend,
    ) -> CountedIn {
        match old {
            Some(old) if old.label == new.label => {
                CountedIn { main: true, short_circuit: !old.short_circuit.is_empty() }
            }
            Some(_) => CountedIn::default(),
            // The transaction replaces a table that still has its elements.
            None if *record.table(key.family()) == TableState::Unusable => {
                CountedIn { main: true, short_circuit: true }
            }
            // The frontend is incomplete in the kernel, so that its elements count as strays.
            None if !record.strays.is_empty() => {
                let (main, short_circuit) = Frontend::pools_of(key);
                let is_stray = |set: Set| {
                    let (family, bytes) = (key.family(), encode_key(Key::Frontend(key)));
                    let key = bytes.as_slice().to_vec();
                    record.strays.contains(&Stray { family, set, key, key_end: None })
                };
                CountedIn {
                    main: is_stray(main.verdicts()),
                    short_circuit: is_stray(short_circuit.verdicts()),
                }
            }
            None => CountedIn::default(),
        }
    }

    /// Returns true if the frontend loses its short circuit, whose connections then count for the
    /// verdict.
    pub(super) fn moves(self, new: &Frontend) -> bool {
        self.short_circuit && new.short_circuit.is_empty()
    }
}

/// A new element of a verdict map, whose counter continues those of other elements.
pub(super) struct Continued {
    key: FrontendKey,
    pub(super) set: Set,
    value: Option<Value>,
    label: Arc<str>,
    /// The maps of the elements that it replaces.
    of: [Option<Set>; 2],
}

impl Continued {
    /// Makes an element of a frontend; `None` if it counts nothing, or starts at zero.
    pub(super) fn new(
        key: FrontendKey,
        new: &Frontend,
        element: &Element<'_>,
        before: CountedIn,
    ) -> Option<Continued> {
        let (main, short_circuit) = Frontend::pools_of(key);
        let (main, short_circuit) = (main.verdicts(), short_circuit.verdicts());
        let of = if element.set == main {
            [before.main.then_some(main), before.moves(new).then_some(short_circuit)]
        } else if element.set == short_circuit {
            [before.short_circuit.then_some(short_circuit), None]
        } else {
            [None; 2]
        };
        (of != [None; 2]).then(|| Continued {
            key,
            set: element.set,
            value: element.value.clone(),
            label: new.label.clone(),
            of,
        })
    }

    /// Returns the element.
    pub(super) fn element(&self) -> Element<'_> {
        let (key, value) = (Key::Frontend(self.key), self.value.clone());
        Element { set: self.set, key, value, comment: Some(&self.label) }
    }
}

/// The counters of elements in the kernel, by frontend and map.
#[derive(Debug, Default)]
pub(super) struct Counters(HashMap<(FrontendKey, Set), Counter>);

impl Counters {
    /// Reads the counters that these elements continue. Leaves out elements of other service ports.
    /// A failure must not prevent the transaction: then counters start at zero.
    pub(super) fn read(kernel: &mut dyn Kernel, elements: &[Continued]) -> Counters {
        let mut counters = Counters::default();
        for family in Family::ALL {
            for set in Set::ALL.into_iter().filter(|set| set.counts()) {
                let is_read =
                    |it: &&Continued| it.key.family() == family && it.of.contains(&Some(set));
                let wanted: Vec<&Continued> = elements.iter().filter(is_read).collect();
                if !wanted.is_empty() {
                    counters.read_set(kernel, family, set, &wanted);
                }
            }
        }
        counters
    }

    fn read_set(
        &mut self,
        kernel: &mut dyn Kernel,
        family: Family,
        set: Set,
        wanted: &[&Continued],
    ) {
        let keys: Vec<Bytes> = wanted.iter().map(|it| encode_key(Key::Frontend(it.key))).collect();
        let found = match look_up(kernel, family, set, &keys) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(
                    %family, map = set.name(), %error,
                    "cannot read the counters of changed frontends, which start at zero"
                );
                return;
            }
        };
        for (wanted, found) in wanted.iter().zip(found) {
            let found = found.filter(|it| it.comment.as_deref() == Some(&*wanted.label));
            if let Some(counter) = found.and_then(|found| found.counter) {
                self.0.insert((wanted.key, set), counter);
            }
        }
    }

    /// Returns the number at which the counter of an element starts; `None` for zero.
    pub(super) fn start_of(&self, element: &Continued) -> Option<Counter> {
        let of = element.of.iter().flatten().filter_map(|set| self.0.get(&(element.key, *set)));
        let sum = of.fold(Counter::default(), |sum, counter| Counter {
            packets: sum.packets.saturating_add(counter.packets),
            bytes: sum.bytes.saturating_add(counter.bytes),
        });
        (sum.packets > 0).then_some(sum)
    }
}
