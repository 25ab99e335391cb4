//! The slots of backends: each backend of a pool has an index in the kernel's map.

use std::sync::Arc;

use shunt_core::model::{Backend, Balancing, missing};
use shunt_core::plan::{Frontend, FrontendKey, Outcome};

/// A frontend in the kernel.
#[derive(Debug, Clone)]
pub(super) struct Slotted {
    /// The frontend, whose pools have the backends in the order of their slots.
    pub(super) frontend: Frontend,
    /// The backends in sorted order: of the outcome's pool, and of the short circuit's. With several
    /// slots, a backend is here as often, but only once for a hash table.
    ordered: [Arc<[Backend]>; 2],
}

impl Slotted {
    /// Makes a frontend from the plan or a reading of the kernel, whose slots the backends keep.
    pub(super) fn in_order(mut planned: Frontend) -> Slotted {
        planned.larger = None;
        let is_hashed = planned.balancing != Balancing::Random;
        let ordered = pools(&planned).map(|pool| {
            if pool.is_sorted() && !is_hashed {
                return pool;
            }
            let mut backends = pool.to_vec();
            backends.sort_unstable();
            if is_hashed {
                backends.dedup();
            }
            backends.into()
        });
        Slotted { frontend: planned, ordered }
    }

    /// Returns the planned frontend, with the backends in their slots of this one. In a hash table,
    /// the plan gives them their slots. Larger pools stay as large if the plan lets them.
    pub(super) fn followed_by(&self, key: FrontendKey, planned: &Frontend) -> Slotted {
        let planned = &planned.sized(key, |pools| self.frontend.pool(key, pools).len());
        if [&self.frontend, planned].iter().any(|it| it.balancing != Balancing::Random) {
            return Slotted::in_order(planned.clone());
        }
        let ordered = pools(planned);
        let slots = pools(&self.frontend);
        let [main, short_circuit] =
            [0, 1].map(|pool| assign(&slots[pool], &self.ordered[pool], &ordered[pool]));
        let outcome = match &planned.outcome {
            Outcome::Balance(_) => Outcome::Balance(main),
            outcome => outcome.clone(),
        };
        Slotted { frontend: Frontend { outcome, short_circuit, ..planned.clone() }, ordered }
    }

    /// Returns the backends of the pools in sorted order, if the frontend has session affinity.
    pub(super) fn pools_with_affinity(&self) -> Option<Pools<'_>> {
        let [main, short_circuit] = &self.ordered;
        self.frontend.affinity.is_some().then_some(Pools::Ordered([main, short_circuit]))
    }

    /// Returns true if the next frontend lacks a backend of this one.
    pub(super) fn loses_backends(&self, next: Option<&Slotted>) -> bool {
        let Some(next) = next.filter(|next| next.frontend.affinity.is_some()) else {
            return self.ordered.iter().any(|pool| !pool.is_empty());
        };
        let kept =
            |backend: &Backend| next.ordered.iter().any(|pool| pool.binary_search(backend).is_ok());
        let pools = self.ordered.iter().zip(&next.ordered);
        pools.flat_map(|(old, new)| missing(old, new)).any(|backend| !kept(&backend))
    }

    /// Returns true if a backend for all clients of this frontend is only in the next one's short
    /// circuit.
    pub(super) fn is_narrowed_by(&self, next: &Slotted) -> bool {
        let ([old, _], [new, short_circuit]) = (&self.ordered, &next.ordered);
        let lost = || missing(old, new);
        // A backend with fewer slots than before is not lost.
        let is_narrowed = |backend: &Backend| {
            new.binary_search(backend).is_err() && short_circuit.binary_search(backend).is_ok()
        };
        !short_circuit.is_empty() && lost().any(|backend| is_narrowed(&backend))
    }
}

/// The backends of a frontend with session affinity.
#[derive(Clone, Copy)]
pub(super) enum Pools<'a> {
    /// In order: for all clients, and for those of the short circuit.
    Ordered([&'a [Backend]; 2]),
    /// The same in the order of hash tables.
    Hashed([&'a [Backend]; 2]),
}

impl Pools<'_> {
    /// Returns true if one of the first pools has the backend.
    pub(super) fn have(self, backend: Backend, count: usize) -> bool {
        match self {
            Pools::Ordered(pools) => {
                pools.iter().take(count).any(|pool| pool.binary_search(&backend).is_ok())
            }
            Pools::Hashed(pools) => pools.iter().take(count).any(|pool| pool.contains(&backend)),
        }
    }
}

/// Returns the pools of a planned frontend with session affinity; `None` for other frontends.
pub(super) fn pools_with_affinity(frontend: &Frontend) -> Option<Pools<'_>> {
    let pools = frontend.all_pools();
    frontend.affinity.is_some().then_some(match frontend.balancing {
        Balancing::Random => Pools::Ordered(pools),
        Balancing::SourceHash | Balancing::SourceAndPortHash => Pools::Hashed(pools),
    })
}

fn pools(frontend: &Frontend) -> [Arc<[Backend]>; 2] {
    [frontend.main_pool().cloned().unwrap_or_default(), frontend.short_circuit.clone()]
}

/// Assigns a slot to every backend of `new`, in order, and to each copy of it. Backends in `slots`
/// keep theirs, new ones fill the slots of removed ones, and the last ones fill the remaining holes.
/// So a change of one backend changes one slot, two at most. `ordered` has the backends of `slots`
/// in order: large pools are compared in one walk.
fn assign(slots: &Arc<[Backend]>, ordered: &[Backend], new: &Arc<[Backend]>) -> Arc<[Backend]> {
    if slots == new {
        return new.clone();
    }
    let mut gone: Vec<(Backend, usize)> = Vec::new();
    for backend in missing(ordered, new) {
        match gone.last_mut() {
            Some((last, copies)) if *last == backend => *copies += 1,
            _ => gone.push((backend, 1)),
        }
    }
    let mut added = missing(new, ordered);
    let mut assigned = slots.to_vec();
    let mut count = gone.iter().map(|(_, copies)| copies).sum();
    let mut holes = Vec::with_capacity(count);
    // From the end: of several copies the first one stays.
    for (slot, backend) in slots.iter().enumerate().rev() {
        if count == 0 {
            break;
        }
        let found = gone.binary_search_by_key(backend, |(backend, _)| *backend);
        if let Some((_, copies @ 1..)) = found.ok().and_then(|found| gone.get_mut(found)) {
            *copies -= 1;
            count -= 1;
            holes.push(slot);
        }
    }
    holes.reverse();
    let filled = holes.iter().zip(&mut added).map(|(hole, backend)| assigned[*hole] = backend);
    let holes = &holes[filled.count()..];
    assigned.extend(added);
    let length = assigned.len() - holes.len();
    let (holes, beyond) = holes.split_at(holes.partition_point(|hole| *hole < length));
    let last = (length..assigned.len()).rev().filter(|slot| beyond.binary_search(slot).is_err());
    for (hole, slot) in holes.iter().zip(last) {
        assigned[*hole] = assigned[slot];
    }
    assigned.truncate(length);
    assigned.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backends(numbers: &[u8]) -> Arc<[Backend]> {
        numbers
            .iter()
            .map(|n| Backend { address: std::net::Ipv4Addr::new(10, 244, 0, *n).into(), port: 80 })
            .collect()
    }

    #[test]
    fn places_are_kept() {
        for (old, new, wanted) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], &[1, 2, 3][..]),
            (&[3, 1, 2], &[1, 2, 3], &[3, 1, 2]),
            (&[1, 2, 3], &[1, 3], &[1, 3]),
            (&[1, 2, 3], &[2, 3], &[3, 2]),
            (&[1, 2, 3], &[1, 2, 3, 4], &[1, 2, 3, 4]),
            (&[1, 2, 3], &[2, 3, 9], &[9, 2, 3]),
            (&[1, 2, 3], &[9], &[9]),
            (&[1, 1, 2], &[1, 2], &[1, 2]),
            (&[], &[5], &[5]),
        ] {
            let mut ordered = backends(old).to_vec();
            ordered.sort_unstable();
            let assigned = assign(&backends(old), &ordered, &backends(new));
            assert_eq!(assigned, backends(wanted), "{old:?} {new:?}");
        }
    }

    #[test]
    fn a_pool_is_narrowed_by_backends_and_not_by_weights() {
        let slotted = |main: &[u8]| {
            Slotted::in_order(Frontend {
                label: "default/web".into(),
                outcome: Outcome::Balance(backends(main)),
                balancing: Balancing::Random,
                masquerade: false,
                short_circuit: backends(&[1, 2, 3]),
                affinity: Some(60),
                sources: None,
                larger: None,
            })
        };
        for (old, new, narrowed) in [
            (&[1, 2][..], &[1][..], true),
            (&[1, 1, 2], &[1, 2, 2], false),
            (&[1, 2, 4], &[1, 2], false),
        ] {
            assert_eq!(slotted(old).is_narrowed_by(&slotted(new)), narrowed, "{old:?} {new:?}");
        }
    }

    proptest! {
        #[test]
        fn every_backend_gets_one_place_and_few_places_change(
            // As found in the kernel: in any order, and some more than once.
            old in proptest::collection::vec(0_u8..12, 0..20),
            // With weights, a backend has several slots.
            mut new in proptest::collection::vec(0_u8..12, 0..12),
        ) {
            new.sort_unstable();
            let new_pool = backends(&new);
            let old_pool = backends(&old);
            let mut ordered = old_pool.to_vec();
            ordered.sort_unstable();
            let result = assign(&old_pool, &ordered, &new_pool);
            let mut sorted = result.to_vec();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted[..], &new_pool[..]);
            let moved = result.iter().zip(old_pool.iter()).filter(|(a, b)| a != b).count();
            prop_assert!(moved <= missing(&ordered, &new_pool).count());
        }
    }
}
