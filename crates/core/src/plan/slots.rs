//! The slots of pools in which backends have unequal shares, or a place in a hash table.
//!
//! The number of slots depends on the number of backends in steps only. So a change of weights or
//! of a backend changes data of elements, and no verdict. The content depends on nothing but the
//! backends and their weights: every node fills the slots in the same way.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Backend, Balancing, Selection, Weights};

/// The number of slots of a small pool with weights. A share is exact to half a slot, 0.2 %, and one
/// slot at least.
const WEIGHTED_SLOTS: usize = 256;
/// The maximum number of slots of a pool with weights, unless it has more backends.
const MAX_WEIGHTED_SLOTS: usize = 16_384;
/// The numbers of slots of a hash table, each for pools of at most so many backends. They are prime,
/// as the permutations need it. With each step, most clients get another backend.
const HASH_SLOTS: [(usize, usize); 4] =
    [(1, 2), (20, 251), (200, 1_021), (usize::MAX, LARGEST_HASH_SLOTS)];
const LARGEST_HASH_SLOTS: usize = 16_381;

/// The sizes of the pools of a service port whose backends have several slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    balancing: Balancing,
    cluster: usize,
    local: usize,
}

impl Slots {
    /// Returns the sizes for these backends; `None` if each backend has one slot. Ejected backends
    /// count, so that an ejection changes no size.
    pub(super) fn of(selection: &Selection, balancing: Balancing) -> Option<Slots> {
        let size: fn(usize) -> usize = match balancing {
            Balancing::Random if selection.weights.is_none() => return None,
            Balancing::Random => weighted_slots,
            Balancing::SourceHash | Balancing::SourceAndPortHash => hash_slots,
        };
        let (cluster, local) = (size(selection.cluster.len()), size(selection.local.len()));
        Some(Slots { balancing, cluster, local })
    }

    /// Replaces the backends of the pools by slots.
    pub(super) fn fill(self, selection: &mut Selection) {
        let weights = selection.weights.take().unwrap_or_default();
        let is_shared = selection.cluster == selection.local;
        selection.cluster = self.filled(&selection.cluster, self.cluster, &weights);
        selection.local = match is_shared {
            true => selection.cluster.clone(),
            false => self.filled(&selection.local, self.local, &weights),
        };
    }

    fn filled(self, backends: &[Backend], slots: usize, weights: &Weights) -> Arc<[Backend]> {
        if backends.is_empty() {
            return Arc::default();
        }
        let shares: Vec<u64> =
            backends.iter().map(|backend| u64::from(weights.of(*backend))).collect();
        let counts = apportion(&shares, slots);
        match self.balancing {
            Balancing::Random => {
                let copies = backends.iter().zip(counts);
                copies.flat_map(|(backend, count)| std::iter::repeat_n(*backend, count)).collect()
            }
            Balancing::SourceHash | Balancing::SourceAndPortHash => {
                hash_table(backends, &counts, slots)
            }
        }
    }
}

fn weighted_slots(backends: usize) -> usize {
    let slots = backends.saturating_mul(4).checked_next_power_of_two();
    slots.unwrap_or(MAX_WEIGHTED_SLOTS).clamp(WEIGHTED_SLOTS, MAX_WEIGHTED_SLOTS).max(backends)
}

fn hash_slots(backends: usize) -> usize {
    let fitting = HASH_SLOTS.into_iter().find(|(limit, _)| backends <= *limit);
    fitting.map_or(LARGEST_HASH_SLOTS, |(_, slots)| slots).max(backends)
}

/// Divides the slots in proportion to the shares, which are positive. Each gets one at least; slots
/// that are left go to the largest remainders.
fn apportion(shares: &[u64], slots: usize) -> Vec<usize> {
    let mut counts = vec![0_usize; shares.len()];
    let mut open: Vec<usize> = (0..shares.len()).collect();
    let mut left = slots as u64;
    loop {
        let total: u64 = open.iter().map(|place| shares[*place]).sum();
        let (small, large): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|place| shares[**place] * left < total);
        if small.is_empty() {
            break;
        }
        small.iter().for_each(|place| counts[*place] = 1);
        left = left.saturating_sub(small.len() as u64);
        open = large;
    }
    let total: u64 = open.iter().map(|place| shares[*place]).sum::<u64>().max(1);
    let mut used = 0;
    for place in &open {
        let count = shares[*place] * left / total;
        counts[*place] = usize::try_from(count).unwrap_or(usize::MAX);
        used += count;
    }
    // A stable sort: of equal remainders, the first backends get the slots.
    open.sort_by_key(|place| std::cmp::Reverse(shares[*place] * left % total));
    let rest = usize::try_from(left - used).unwrap_or(usize::MAX);
    open.iter().take(rest).for_each(|place| counts[*place] += 1);
    counts
}

/// Fills a hash table in turns, as Maglev does (Eisenbud et al., NSDI 2016, section 3.4): in its
/// turn, a backend takes the first free slot of its own permutation. If a backend leaves, few slots
/// of others change.
fn hash_table(backends: &[Backend], counts: &[usize], slots: usize) -> Arc<[Backend]> {
    struct Turn {
        backend: Backend,
        count: usize,
        next: usize,
        skip: usize,
        taken: usize,
    }
    let size = slots as u64;
    let mut turns: Vec<Turn> = backends
        .iter()
        .zip(counts)
        .map(|(backend, count)| Turn {
            backend: *backend,
            count: *count,
            next: (hash(*backend, 0x6f66_6673_6574) % size) as usize,
            skip: (hash(*backend, 0x736b_6970) % (size - 1).max(1)) as usize + 1,
            taken: 0,
        })
        .collect();
    let rounds = counts.iter().copied().max().unwrap_or_default();
    let mut table: Vec<Option<Backend>> = vec![None; slots];
    for round in 1..=rounds {
        for turn in &mut turns {
            // Backends with a smaller count skip rounds, evenly.
            if turn.taken * rounds >= turn.count * round {
                continue;
            }
            turn.taken += 1;
            // Every permutation visits all slots, since their number is prime.
            for _ in 0..slots {
                let place = turn.next;
                turn.next = (place + turn.skip) % slots;
                if table[place].is_none() {
                    table[place] = Some(turn.backend);
                    break;
                }
            }
        }
    }
    let first = backends.first().copied();
    table.into_iter().filter_map(|slot| slot.or(first)).collect()
}

/// Hashes a backend: FNV-1a over address and port, then the finalizer of SplitMix64. The same for
/// all versions of shunt, since nodes of a cluster may have different ones.
fn hash(backend: Backend, seed: u64) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    let hash = match backend.address {
        IpAddr::V4(address) => address.octets().iter().fold(start, step),
        IpAddr::V6(address) => address.octets().iter().fold(start, step),
    };
    let mut hash = backend.port.to_be_bytes().iter().fold(hash, step);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(factor);
    }
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn backends(count: usize) -> Vec<Backend> {
        let address = |n: usize| Ipv4Addr::from(0x0af4_0000 + u32::try_from(n).expect("small"));
        (1..=count).map(|n| Backend { address: address(n).into(), port: 8080 }).collect()
    }

    fn table(backends: &[Backend], weights: &Weights) -> Arc<[Backend]> {
        let mut selection = Selection { cluster: backends.into(), ..Selection::default() };
        selection.weights = Some(weights.clone());
        let slots = Slots::of(&selection, Balancing::SourceHash).expect("a hash table");
        slots.fill(&mut selection);
        selection.cluster
    }

    fn counts(table: &[Backend]) -> BTreeMap<Backend, usize> {
        let mut counts = BTreeMap::new();
        table.iter().for_each(|backend| *counts.entry(*backend).or_default() += 1);
        counts
    }

    #[test]
    fn slots_are_in_proportion_to_weights() {
        for (shares, slots, wanted) in [
            (&[1, 1][..], 256, &[128, 128][..]),
            (&[1, 3], 256, &[64, 192]),
            (&[1, 2, 3], 256, &[43, 85, 128]),
            (&[100, 1, 1, 1], 256, &[249, 3, 2, 2]),
            (&[65_535, 1], 256, &[255, 1]),
            (&[65_535, 1, 1], 4, &[2, 1, 1]),
            (&[5], 256, &[256]),
            (&[1, 1, 1], 3, &[1, 1, 1]),
        ] {
            assert_eq!(apportion(shares, slots), wanted, "{shares:?}");
        }
    }

    #[test]
    fn sizes_change_in_steps() {
        for (backends, weighted, hashed) in [
            (1, 256, 2),
            (2, 256, 251),
            (20, 256, 251),
            (21, 256, 1_021),
            (65, 512, 1_021),
            (200, 1_024, 1_021),
            (201, 1_024, 16_381),
            (5_000, 16_384, 16_381),
            (20_000, 20_000, 20_000),
        ] {
            assert_eq!((weighted_slots(backends), hash_slots(backends)), (weighted, hashed));
        }
    }

    /// Other nodes may have an older or a newer version.
    #[test]
    fn the_table_is_the_same_in_every_version() {
        let table = table(&backends(3), &Weights::default());
        let octets: Vec<String> = table.iter().take(16).map(|it| it.address.to_string()).collect();
        let last: Vec<&str> = octets.iter().filter_map(|text| text.rsplit('.').next()).collect();
        assert_eq!(last.join(" "), "2 1 1 1 1 2 2 3 3 3 3 2 2 2 1 1");
    }

    /// The rows of the table in docs/load-balancing.md: averages of pools with different addresses.
    #[test]
    fn few_clients_move_needlessly() {
        const POOLS: usize = 20;
        for row in [
            "| 2 | 251 | 125 to 126 | 0.0 % | 0.0 % |",
            "| 5 | 251 | 50 to 51 | 2.9 % | 7.6 % |",
            "| 10 | 251 | 25 to 26 | 5.3 % | 9.6 % |",
            "| 100 | 1021 | 10 to 11 | 3.7 % | 4.8 % |",
        ] {
            let count = row.split(' ').nth(1).expect("a number").parse().expect("a number");
            let mut shares: Vec<f64> = Vec::new();
            let mut sizes = Vec::new();
            for pool in 0..POOLS {
                let all: Vec<Backend> = backends(count * POOLS).split_off(count * pool);
                let all = &all[..count];
                let before = table(all, &Weights::default());
                sizes.extend(counts(&before).into_values());
                for gone in all.iter().take(10) {
                    let others: Vec<Backend> =
                        all.iter().filter(|it| *it != gone).copied().collect();
                    let after = table(&others, &Weights::default());
                    // Of two backends one is left, in fewer slots.
                    let now = after.iter().cycle();
                    let moved = before.iter().zip(now);
                    let moved = moved.filter(|(old, new)| *old != gone && old != new).count();
                    shares.push(moved as f64 / before.len() as f64);
                }
            }
            let average = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
            let found = format!(
                "| {count} | {} | {} to {} | {:.1} % | {:.1} % |",
                hash_slots(count),
                sizes.iter().min().expect("backends"),
                sizes.iter().max().expect("backends"),
                100.0 * average,
                100.0 * shares.iter().copied().fold(0.0, f64::max),
            );
            assert_eq!(found, row);
        }
    }

    proptest! {
        #[test]
        fn every_slot_is_filled_in_proportion(
            weights in proptest::collection::vec(1_u16..=30, 2..40),
        ) {
            let all = backends(weights.len());
            let weighted: Weights = all.iter().copied().zip(weights.iter().copied()).collect();
            let table = table(&all, &weighted);
            let slots = hash_slots(all.len());
            prop_assert_eq!(table.len(), slots);
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (place, (backend, count)) in counts(&table).into_iter().enumerate() {
                prop_assert_eq!(backend, all[place]);
                let exact = f64::from(weights[place]) / total * slots as f64;
                prop_assert!((count as f64 - exact).abs() <= 3.0, "{} for {}", count, exact);
            }
        }

        #[test]
        fn all_slots_are_apportioned(
            shares in proptest::collection::vec(1_u64..=65_535, 1..60),
            more in 0_usize..500,
        ) {
            let slots = shares.len() + more;
            let counts = apportion(&shares, slots);
            prop_assert_eq!(counts.iter().sum::<usize>(), slots);
            prop_assert!(counts.iter().all(|count| *count > 0));
        }
    }
}
