//! Continues the counters of frontends when their verdicts change.
//!
//! Each element of a verdict map counts the new connections of its frontend. The kernel has no
//! message for another verdict: a transaction deletes the element and adds a new one, whose counter
//! would start at zero. So the agent reads the counters of the elements that a transaction replaces,
//! and the new elements start at these numbers. Connections between the reading and the commit are
//! not counted.

use nfnetlink::nft::{Counter, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Element, Set};

use super::codec::{Bytes, encode_key};
use super::listing::look_up;

/// A new element of a verdict map, whose counter continues its predecessor's.
pub(super) struct Continued<'a> {
    pub(super) element: Element<'a>,
    /// The map of a lost short circuit, whose connections count here as well.
    pub(super) absorbs: Option<Set>,
}

/// Reads the counters that these elements continue, without those of other service ports. A failure
/// must not prevent the transaction: then counters start at zero.
pub(super) fn read(kernel: &mut dyn Kernel, all: &[Continued<'_>]) -> Vec<Counter> {
    let mut sums = vec![Counter::default(); all.len()];
    for family in Family::ALL {
        for set in Set::ALL.into_iter().filter(|set| set.counts()) {
            let is_wanted = |Continued { element, absorbs }: &Continued<'_>| {
                let is_in_map = element.set == set || *absorbs == Some(set);
                is_in_map && element.key.family() == family
            };
            let wanted = all.iter().zip(&mut sums).filter(|(it, _)| is_wanted(it));
            let mut wanted: Vec<_> = wanted.map(|(it, sum)| (&it.element, sum)).collect();
            if wanted.is_empty() {
                continue;
            }
            let keys: Vec<Bytes> = wanted.iter().map(|(it, _)| encode_key(it.key)).collect();
            let read = look_up(kernel, family, set, &keys, &mut |place, found| {
                if let (Some((element, sum)), Some(counter)) =
                    (wanted.get_mut(place), found.counter)
                    && found.comment == element.comment
                {
                    sum.packets = sum.packets.saturating_add(counter.packets);
                    sum.bytes = sum.bytes.saturating_add(counter.bytes);
                }
            });
            if let Err(error) = read {
                tracing::debug!(
                    %family, map = set.name(), %error,
                    "cannot read the counters of changed frontends, which start at zero"
                );
            }
        }
    }
    sums
}
