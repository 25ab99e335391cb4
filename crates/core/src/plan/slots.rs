//! The slots of pools in which backends have unequal shares, or a place in a hash table.
//!
//! All such pools of a Service have the same number of slots. It depends on the number of backends
//! in steps only. So a change of weights or of a backend changes data of elements, and no verdict.
//! With many pools, the number is smaller: a Service has at most [`MAX_ELEMENTS`].
//!
//! The content depends on nothing but the backends, their weights and the number of slots: every node
//! fills the slots in the same way. Just below a step, the plan allows two numbers: tables that are
//! larger already stay so ([`Frontend::sized`]). There, nodes with another past may have others.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Frontend, FrontendKey, Outcome, Pools, ServicePlan};
use crate::model::{Backend, Balancing, Selection, Weights};

/// The maximum number of elements of a Service in which a backend has several slots.
pub const MAX_ELEMENTS: usize = 100_000;
/// What became of a Service that would have more.
pub const OVERSIZED: &str = "hash tables or weights would need more than 100000 elements: endpoints \
     get connections at random, without weights; use fewer ports, addresses or endpoints";
/// The numbers of slots of hash tables. They are prime, as the permutations need it. Pools with
/// weights have the powers of two above them.
const SIZES: [usize; 14] =
    [2, 3, 7, 13, 31, 61, 127, 251, 509, 1_021, 2_039, 4_093, 8_191, LARGEST];
const LARGEST: usize = 16_381;
/// The number of slots of a small pool with weights. A share is exact to half a slot, 0.2 %, and one
/// slot at least.
const WEIGHTED_SLOTS: usize = 256;
/// The numbers of slots of a hash table, each for pools of at most so many backends. With each step,
/// most clients get another backend.
const HASH_SLOTS: [(usize, usize); 3] = [(1, 2), (20, 251), (200, 1_021)];

/// The number of slots of a Service's pools whose backends have several slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) balancing: Balancing,
    slots: usize,
    /// The largest number that pools may keep.
    kept: usize,
}

/// The larger pools that a frontend may keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Larger {
    weights: Weights,
    slots: usize,
}

impl Slots {
    /// Returns the number of slots for a Service, from its plan with one slot for each backend.
    /// `None` if [`MAX_ELEMENTS`] have no room for every backend.
    pub(super) fn of(plan: &ServicePlan, balancing: Balancing) -> Option<Slots> {
        let pools = || plan.frontends.iter().flat_map(|(key, frontend)| frontend.pools(*key));
        let (count, backends) = (pools().count(), pools().map(|(_, pool)| pool.len()).max());
        let backends = backends.unwrap_or_default();
        let decisions = plan.frontends.iter().map(|(key, it)| it.decisions(*key).count());
        let others = decisions.sum::<usize>() + plan.members().count();
        let fits = |slots: &usize| *slots >= backends && count * slots + others <= MAX_ELEMENTS;
        let largest = |wanted| sizes(balancing).filter(|it| *it <= wanted).filter(fits).last();
        let slots = largest(wanted(balancing, backends))?;
        // Pools shrink at three fifths of the step at which they grow. A single backend has no table
        // that were worth keeping.
        let larger = wanted(balancing, (backends * 5).div_ceil(3));
        let kept = largest(larger).filter(|_| backends > 1).unwrap_or(slots);
        Some(Slots { balancing, slots, kept })
    }

    /// Replaces the backends of the pools by slots.
    pub(super) fn fill(self, selection: &mut Selection) {
        let fill = |pool: &[Backend]| filled(self.balancing, pool, self.slots, &selection.weights);
        let (cluster, local) = (fill(&selection.cluster), fill(&selection.local));
        (selection.cluster, selection.local) = (cluster, local);
    }

    /// Returns the larger pools that frontends with this selection may keep.
    pub(super) fn larger(self, selection: &Selection) -> Option<Arc<Larger>> {
        let weights = || selection.weights.clone();
        (self.kept > self.slots).then(|| Larger { weights: weights(), slots: self.kept }.into())
    }
}

impl Frontend {
    /// Returns the frontend as it follows pools of these sizes in the kernel, without
    /// [`Frontend::larger`]: larger pools stay as large if they may.
    #[must_use]
    pub fn sized(&self, key: FrontendKey, in_kernel: impl Fn(Pools) -> usize) -> Frontend {
        let mut sized = self.clone();
        let Some(larger) = sized.larger.take() else { return sized };
        let resize = |pools: Pools, pool: &mut Arc<[Backend]>| {
            let slots = in_kernel(pools);
            let may_stay = (pool.len() + 1..=larger.slots).contains(&slots);
            if may_stay && !pool.is_empty() && sizes(self.balancing).any(|size| size == slots) {
                let mut backends = pool.to_vec();
                backends.sort_unstable();
                backends.dedup();
                *pool = filled(self.balancing, &backends, slots, &larger.weights);
            }
        };
        let (main, short_circuit) = Frontend::pools_of(key);
        if let Outcome::Balance(pool) = &mut sized.outcome {
            resize(main, pool);
        }
        resize(short_circuit, &mut sized.short_circuit);
        sized
    }
}

/// Returns the possible numbers of slots, in ascending order.
fn sizes(balancing: Balancing) -> impl Iterator<Item = usize> {
    SIZES.into_iter().map(move |prime| match balancing {
        Balancing::Random => prime.next_power_of_two(),
        Balancing::SourceHash | Balancing::SourceAndPortHash => prime,
    })
}

/// Returns the number of slots for so many backends, if a Service has few pools.
fn wanted(balancing: Balancing, backends: usize) -> usize {
    match balancing {
        Balancing::Random => {
            let slots = backends.saturating_mul(4).checked_next_power_of_two();
            slots.unwrap_or(usize::MAX).max(WEIGHTED_SLOTS)
        }
        Balancing::SourceHash | Balancing::SourceAndPortHash => {
            let step = HASH_SLOTS.into_iter().find(|(limit, _)| backends <= *limit);
            step.map_or(LARGEST, |(_, slots)| slots)
        }
    }
}

fn filled(
    balancing: Balancing,
    backends: &[Backend],
    slots: usize,
    weights: &Weights,
) -> Arc<[Backend]> {
    if backends.is_empty() {
        return Arc::default();
    }
    let weight = |backend| weights.get(backend).copied().unwrap_or(1).into();
    let shares: Vec<u64> = backends.iter().map(weight).collect();
    let counts = apportion(&shares, slots);
    match balancing {
        Balancing::Random => {
            let copies = backends.iter().zip(counts);
            copies.flat_map(|(backend, count)| std::iter::repeat_n(*backend, count)).collect()
        }
        Balancing::SourceHash | Balancing::SourceAndPortHash => {
            hash_table(backends, &counts, slots)
        }
    }
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
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::model::{
        Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Family, ObjectName, Protocol,
        Service, ServicePort, Store, TrafficPolicy,
    };
    use crate::plan::{NodeContext, Options, plan_service};

    fn backends(count: usize) -> Vec<Backend> {
        let address = |n: usize| Ipv4Addr::from(0x0af4_0000 + u32::try_from(n).expect("small"));
        (1..=count).map(|n| Backend { address: address(n).into(), port: 8080 }).collect()
    }

    fn hash_slots(backends: usize) -> usize {
        wanted(Balancing::SourceHash, backends)
    }

    fn table(backends: &[Backend], weights: &Weights) -> Arc<[Backend]> {
        filled(Balancing::SourceHash, backends, hash_slots(backends.len()), weights)
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

    /// Returns the number of slots of a Service with so many ports, and that of larger pools that
    /// may stay.
    fn slots(balancing: Balancing, ports: u16, count: usize) -> Option<(usize, usize)> {
        let selection = Selection { cluster: backends(count).into(), ..Selection::default() };
        let mut plan = plan_of(&selection);
        let frontend = plan.frontends.remove(0).1;
        plan.frontends = (0..ports).map(|port| (key(port), frontend.clone())).collect();
        Slots::of(&plan, balancing).map(|slots| (slots.slots, slots.kept))
    }

    fn key(port: u16) -> FrontendKey {
        FrontendKey::Address([10, 96, 0, 1].into(), Protocol::Tcp, port)
    }

    #[test]
    fn sizes_change_in_steps() {
        for (backends, weighted, hashed) in [
            (1, Some((256, 256)), Some((2, 2))),
            (2, Some((256, 256)), Some((251, 251))),
            (12, Some((256, 256)), Some((251, 251))),
            (13, Some((256, 256)), Some((251, 1_021))),
            (20, Some((256, 256)), Some((251, 1_021))),
            (21, Some((256, 256)), Some((1_021, 1_021))),
            (39, Some((256, 512)), Some((1_021, 1_021))),
            (65, Some((512, 512)), Some((1_021, 1_021))),
            (120, Some((512, 1_024)), Some((1_021, 1_021))),
            (121, Some((512, 1_024)), Some((1_021, 16_381))),
            (200, Some((1_024, 2_048)), Some((1_021, 16_381))),
            (201, Some((1_024, 2_048)), Some((16_381, 16_381))),
            (5_000, Some((16_384, 16_384)), Some((16_381, 16_381))),
            (16_382, Some((16_384, 16_384)), None),
            (20_000, None, None),
        ] {
            assert_eq!(slots(Balancing::Random, 1, backends), weighted, "{backends} weighted");
            assert_eq!(slots(Balancing::SourceHash, 1, backends), hashed, "{backends} hashed");
        }
    }

    #[test]
    fn many_pools_have_fewer_slots_each() {
        for (ports, backends, weighted, hashed) in [
            (6, 201, Some((1_024, 2_048)), Some((16_381, 16_381))),
            (7, 201, Some((1_024, 2_048)), Some((8_191, 8_191))),
            (60, 200, Some((1_024, 1_024)), Some((1_021, 1_021))),
            (60, 201, Some((1_024, 1_024)), Some((1_021, 1_021))),
            (1_000, 3, Some((64, 64)), Some((61, 61))),
            (1_000, 62, Some((64, 64)), None),
            (1_000, 201, None, None),
        ] {
            assert_eq!(slots(Balancing::Random, ports, backends), weighted, "{ports}, weighted");
            assert_eq!(slots(Balancing::SourceHash, ports, backends), hashed, "{ports}, hashed");
        }
    }

    /// Backends come and go around 200: tables keep 16 381 slots, and their content follows from it.
    #[test]
    fn larger_tables_stay_within_the_band() {
        let planned = |count: usize| {
            let cluster = backends(count).into();
            let mut selection = Selection { cluster, ..Selection::default() };
            let plan = plan_of(&selection);
            let slots = Slots::of(&plan, Balancing::SourceHash).expect("a hash table");
            slots.fill(&mut selection);
            let larger = slots.larger(&selection);
            let outcome = Outcome::Balance(selection.cluster);
            Frontend { outcome, larger, ..plan.frontends[0].1.clone() }
        };
        let sized = |count, in_kernel| {
            let frontend = planned(count).sized(key(80), |_| in_kernel);
            assert_eq!(frontend.larger, None);
            frontend.main_pool().cloned().expect("a pool")
        };
        for (count, in_kernel, slots) in [
            (200, 0, 1_021),
            (200, 1_021, 1_021),
            (200, 16_381, 16_381),
            // Not a size of these tables.
            (200, 12_345, 1_021),
            (200, 20_000, 1_021),
            (121, 16_381, 16_381),
            (120, 16_381, 1_021),
            (201, 1_021, 16_381),
        ] {
            assert_eq!(sized(count, in_kernel).len(), slots, "{count} in {in_kernel}");
        }
        let table = |count: usize| {
            filled(Balancing::SourceHash, &backends(count), LARGEST, &Weights::default())
        };
        assert_eq!(sized(200, 16_381), table(200));
        let changed = table(201).iter().zip(table(200).iter()).filter(|(a, b)| a != b).count();
        assert!(changed < LARGEST / 20, "{changed} slots change with one of 201 backends");
    }

    fn plan_of(selection: &Selection) -> ServicePlan {
        let frontend = Frontend {
            label: "default/web".into(),
            outcome: Outcome::Balance(selection.cluster.clone()),
            balancing: Balancing::SourceHash,
            masquerade: false,
            short_circuit: Arc::default(),
            affinity: None,
            sources: None,
            larger: None,
        };
        ServicePlan { frontends: vec![(key(80), frontend)], ..ServicePlan::default() }
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

    /// A dual-stack Service with so many ports, and its slices with so many endpoints.
    fn objects(ports: u16, count: u16, weight: Option<u16>) -> (Service, Vec<EndpointSlice>) {
        let name = |port: u16| Arc::<str>::from(format!("port-{port}"));
        let service = Service {
            name: ObjectName::new("default", "web"),
            created: None,
            cluster_ips: vec![[10, 96, 0, 1].into(), Ipv6Addr::LOCALHOST.into()],
            external_ips: Vec::new(),
            load_balancer_ips: vec![[203, 0, 113, 1].into()],
            proxied_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: (1..=ports)
                .map(|port| ServicePort {
                    name: name(port),
                    protocol: Protocol::Tcp,
                    port,
                    node_port: Some(30_000 + port),
                })
                .collect(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Local,
            affinity_seconds: Some(60),
            balancing: None,
            health_check_node_port: None,
        };
        let slice = |family| EndpointSlice {
            name: ObjectName::new("default", format!("web-{family}")),
            service: Some("web".into()),
            family,
            weight,
            ports: (1..=ports)
                .map(|port| EndpointPort { name: name(port), protocol: Protocol::Tcp, port })
                .collect(),
            endpoints: (0..count)
                .map(|n| Endpoint {
                    address: match family {
                        Family::V4 => Ipv4Addr::from(0x0af4_0000 + u32::from(n)).into(),
                        Family::V6 => Ipv6Addr::from(u128::from(n) + 2).into(),
                    },
                    ready: true,
                    serving: true,
                    terminating: false,
                    node: Some(if n % 3 == 0 { "here" } else { "there" }.into()),
                    hints: None,
                })
                .collect(),
        };
        (service, Family::ALL.map(slice).into())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_service_has_few_elements_and_all_endpoints(
            (ports, count) in prop_oneof![(1_u16..4, 1_u16..400), (1_u16..200, 1_u16..60)],
            weight in proptest::option::of(1_u16..100),
            balancing in prop_oneof![
                Just(None), Just(Some(Balancing::SourceHash)),
                Just(Some(Balancing::SourceAndPortHash)),
            ],
        ) {
            let (service, slices) = objects(ports, count, weight);
            let service = Service { balancing, ..service };
            let mut store = Store::new();
            let mut dirty = Dirty::default();
            let options = Options::default();
            let slices = slices.into_iter().map(Change::slice);
            for change in std::iter::once(Change::service(service.clone())).chain(slices) {
                store.apply(change, &mut dirty);
            }
            let context = NodeContext::of(&store, &options, "here");
            let plan = plan_service(&service, store.slices(&service.name), &context);
            let plain = Service { balancing: None, ..service };
            let (_, unweighted) = objects(ports, count, None);
            let plain = plan_service(&plain, unweighted.iter(), &context);
            let frontends = plan.frontends.iter().map(|(key, it)| it.elements(*key).count());
            let elements = frontends.sum::<usize>() + plan.members().count();
            prop_assert!(elements <= MAX_ELEMENTS || plan.is_oversized || plan == plain);
            if plan.is_oversized {
                let plain = ServicePlan { is_oversized: true, ..plain };
                prop_assert!(plan == plain);
                return Ok(());
            }
            prop_assert_eq!(plan.frontends.len(), plain.frontends.len());
            for ((key, frontend), (_, plain)) in plan.frontends.iter().zip(&plain.frontends) {
                for (pools, pool) in frontend.pools(*key) {
                    let backends: BTreeSet<&Backend> = pool.iter().collect();
                    let wanted: BTreeSet<&Backend> = plain.pool(*key, pools).iter().collect();
                    prop_assert_eq!(backends, wanted, "{} {:?}", key, pools);
                }
            }
            // Larger tables that stay fit, too.
            let larger = plan.frontends.iter().map(|(key, it)| {
                let largest = it.larger.as_ref().map_or(0, |larger| larger.slots);
                it.sized(*key, |_| largest).elements(*key).count()
            });
            prop_assert!(larger.sum::<usize>() <= MAX_ELEMENTS || plan == plain);
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
