//! Continues the counters of frontends when their verdicts change.
//!
//! Each element of a verdict map counts the new connections of its frontend. The kernel has no
//! message for another verdict: a transaction deletes the element and adds a new one, whose counter
//! would start at zero. So the agent reads the counters of the elements that a transaction replaces,
//! and the new elements start at these numbers. Connections between the reading and the commit are
//! not counted.

use foldhash::HashMap;
use nfnetlink::nft::{Counter, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Element, Key, Set};

use super::codec::{Bytes, encode_key};
use super::listing::look_up;

/// A new element of a verdict map, whose counter continues its predecessor's.
pub(super) struct Continued<'a> {
    pub(super) element: Element<'a>,
    /// The map of a lost short circuit, whose connections count here as well.
    pub(super) absorbs: Option<Set>,
}

impl Continued<'_> {
    fn maps(&self) -> impl Iterator<Item = Set> {
        [self.element.set].into_iter().chain(self.absorbs)
    }
}

/// The counters of elements in the kernel, by key and map.
#[derive(Debug, Default)]
pub(super) struct Counters(HashMap<(Key, Set), Counter>);

impl Counters {
    /// Reads the counters that these elements continue. Leaves out elements of other service ports.
    /// A failure must not prevent the transaction: then counters start at zero.
    pub(super) fn read(kernel: &mut dyn Kernel, all: &[Continued<'_>]) -> Counters {
        let mut counters = Counters::default();
        for family in Family::ALL {
            for set in Set::ALL.into_iter().filter(|set| set.counts()) {
                let of_family = all.iter().filter(|it| it.element.key.family() == family);
                let wanted = of_family.filter(|it| it.maps().any(|map| map == set));
                let wanted: Vec<&Element<'_>> = wanted.map(|it| &it.element).collect();
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
        wanted: &[&Element<'_>],
    ) {
        let keys: Vec<Bytes> = wanted.iter().map(|it| encode_key(it.key)).collect();
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
            let found = found.filter(|it| it.comment.as_deref() == wanted.comment);
            if let Some(counter) = found.and_then(|found| found.counter) {
                self.0.insert((wanted.key, set), counter);
            }
        }
    }

    /// Returns the number at which the counter of an element starts; `None` for zero.
    pub(super) fn start_of(&self, continued: &Continued<'_>) -> Option<Counter> {
        let of = continued.maps().filter_map(|map| self.0.get(&(continued.element.key, map)));
        let sum = of.fold(Counter::default(), |sum, counter| Counter {
            packets: sum.packets.saturating_add(counter.packets),
            bytes: sum.bytes.saturating_add(counter.bytes),
        });
        (sum.packets > 0).then_some(sum)
    }
}
