//! What a random transaction consists of: things that fit together often, but not always.

use anyhow::Result;
use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, Counter, ElementData, Elements, Expr, Hook, Kernel, Register,
    SetData, SetType, TABLE_OWNER, TABLE_PERSIST, TableFamily, Verdict, Wanted,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use shunt_fake_nftables::Features;

pub(crate) const FAMILIES: [TableFamily; 2] = [TableFamily::Ip, TableFamily::Ip6];
pub(crate) const TABLES: [&str; 2] = ["a", "b"];
const CHAINS: [&str; 6] = ["one", "two", "three", "four", "base", "nat"];
const SETS: [&str; 5] = ["numbers", "verdicts", "values", "ranges", "few"];

/// What kernels differ in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    /// What the fake does not have either, then.
    pub(crate) features: Features,
    /// It looks for circles when a transaction ends, from base chains on. Others look when a rule or
    /// an element is added, from where that leads, which the fake does not do: there no rule that
    /// goes on stands where others lead.
    pub(crate) late_circles: bool,
    /// It refuses elements of a set of ranges that overlap, as the fake does. On others, which take
    /// some, such sets have no elements.
    pub(crate) exact_ranges: bool,
    /// It calls another hook for a base chain that is there not supported, as the fake does. On
    /// others each chain always has the same hook, or none.
    pub(crate) hook_changes_are_unsupported: bool,
    /// It calls a flag of a table that it does not know not supported, as the fake does. Linux 7 calls it
    /// invalid; on such kernels no table has one.
    pub(crate) unknown_flags_are_unsupported: bool,
    /// It takes an element of a map with verdicts that is there already, as the fake does. Others compare
    /// memory that they have not set, too, and refuse some.
    pub(crate) repeated_verdicts: bool,
}

impl Abilities {
    /// Chains to which rules and elements lead.
    fn targets(self) -> &'static [&'static str] {
        if self.late_circles { &CHAINS } else { &CHAINS[3..] }
    }

    /// Chains that have rules.
    fn with_rules(self) -> Vec<&'static str> {
        let all = CHAINS[..5].iter().copied();
        all.filter(|chain| self.late_circles || *chain != self.targets()[0]).collect()
    }
}

/// Most of what happens does so in one table.
type Place = (TableFamily, &'static str);

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        20 => Just((TableFamily::Ip, "a")),
        1 => Just((TableFamily::Ip, "b")),
        1 => Just((TableFamily::Ip6, "a")),
        1 => Just((TableFamily::Ip6, "b")),
    ]
}

/// What one or more messages ask for.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    AddTable(Place, u32),
    DeleteTable(Place),
    AddChain(Place, &'static str, Option<BaseChain>),
    DeleteChain(Place, &'static str),
    FlushChain(Place, &'static str),
    AddRule(Place, &'static str, Vec<Expr>),
    /// The n-th rule of the table.
    DeleteRule(Place, usize),
    AddSet(Place, &'static str, SetType),
    AddElements(Place, &'static str, Vec<Element>),
    DeleteElements(Place, &'static str, Vec<Element>),
}

/// An element.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    data: Option<Data>,
    comment: Option<&'static str>,
    /// What it has counted already.
    counter: Option<Counter>,
}

#[derive(Debug, Clone)]
enum Data {
    Value(Vec<u8>),
    Verdict(Verdict<&'static str>),
}

/// The definition that a set of that name mostly has.
pub(crate) fn usual(set: &str) -> SetType {
    let plain = SetType::of(4, 4);
    match set {
        "verdicts" => SetType { data: Some(SetData::Verdict), counter: true, ..plain },
        "values" => {
            let data = SetData::Value { type_id: 0x1cd, length: 8 };
            SetType { data: Some(data), ..plain }
        }
        "ranges" => SetType {
            key_type: 13 << 6 | 7,
            key_length: 8,
            range_fields: Some([2, 4, 0, 0]),
            ..plain
        },
        "few" => SetType { learned: true, size: Some(4), ..plain },
        _ => plain,
    }
}

/// Flags of a table; no kernel knows 0x80.
fn flags(kernel: Abilities) -> impl Strategy<Value = u32> {
    let owned = kernel.features.table_flags & (TABLE_OWNER | TABLE_PERSIST);
    let unknown = if kernel.unknown_flags_are_unsupported { owned | 0x80 } else { owned };
    prop_oneof![
        10 => Just(0),
        10 => Just(owned),
        1 => select(vec![TABLE_OWNER, TABLE_PERSIST, unknown]),
    ]
}

/// A chain to go to; now and then a base chain, which is refused.
fn chain(kernel: Abilities) -> impl Strategy<Value = &'static str> {
    let targets = kernel.targets();
    prop_oneof![8 => select(&targets[..targets.len() - 2]), 1 => select(targets)]
}

fn base(kernel: Abilities, chain: &'static str) -> BoxedStrategy<Option<BaseChain>> {
    let usual = match chain {
        "base" => Some((ChainKind::Filter, Hook::Input, 0)),
        "nat" => Some((ChainKind::Nat, Hook::Output, -100)),
        _ => None,
    };
    let usual = usual.map(|(kind, hook, priority)| BaseChain { kind, hook, priority });
    let kind = select(vec![ChainKind::Filter, ChainKind::Nat]);
    let hook = select(vec![Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output]);
    let other = (kind, hook, select(vec![0, -100, -300]))
        .prop_map(|(kind, hook, priority)| Some(BaseChain { kind, hook, priority }));
    if !kernel.hook_changes_are_unsupported {
        return Just(usual).boxed();
    }
    prop_oneof![20 => Just(usual), 1 => Just(None), 1 => other].boxed()
}

/// A set, mostly with its usual definition.
fn set() -> impl Strategy<Value = (&'static str, SetType)> {
    (select(&SETS[..]), select(&SETS[..]), prop::bool::weighted(0.1))
        .prop_map(|(name, other, odd)| (name, usual(if odd { other } else { name })))
}

/// Few keys, so that elements meet; now and then one of another length.
fn key(length: usize) -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![80 => Just(length), 1 => select(vec![2, 4, 8, 12, 68])];
    (0_u8..6, length).prop_map(|(key, length)| {
        let mut bytes = vec![0; length];
        bytes[0] = key;
        bytes
    })
}

/// Ranges of ports and addresses. None holds another one whole that is there before it: the kernel
/// does not notice that, and what it does afterwards is its own affair.
fn range() -> impl Strategy<Value = (Vec<u8>, Option<Vec<u8>>)> {
    (0_u8..3, 0_u8..8, 0_u8..3, prop::bool::weighted(0.95)).prop_map(
        |(port, first, length, has_end)| {
            let key = |address: u8| vec![0, port, 0, 0, 10, 0, 0, address];
            (key(first * 4), has_end.then(|| key(first * 4 + length * 3)))
        },
    )
}

fn data(kernel: Abilities, set: &'static str) -> BoxedStrategy<Option<Data>> {
    let value = key(8).prop_map(|value| Some(Data::Value(value))).boxed();
    let verdict = prop_oneof![
        6 => (chain(kernel), any::<bool>()).prop_map(|(chain, jump)| {
            Some(Data::Verdict(if jump { Verdict::Jump(chain) } else { Verdict::Goto(chain) }))
        }),
        2 => Just(Some(Data::Verdict(Verdict::Drop))),
    ]
    .boxed();
    let usual = match set {
        "verdicts" => verdict.clone(),
        "values" => value.clone(),
        _ => Just(None).boxed(),
    };
    prop_oneof![80 => usual, 1 => value, 1 => verdict, 1 => Just(None)].boxed()
}

fn element(kernel: Abilities, set: &'static str) -> BoxedStrategy<Element> {
    let plain = key(usual(set).key_length as usize).prop_map(|key| (key, None));
    let keys = match set {
        _ if !kernel.exact_ranges => plain.boxed(),
        "ranges" => prop_oneof![40 => range(), 1 => plain].boxed(),
        _ => prop_oneof![40 => plain, 1 => range()].boxed(),
    };
    let comment = prop_oneof![Just(None), Just(Some("default/service-1:http"))];
    (keys, data(kernel, set), comment)
        .prop_map(move |((key, key_end), data, comment)| {
            // Those with a comment come with a counter, in a set that counts.
            let has_counter = set == "verdicts" && key_end.is_none() && comment.is_some();
            let packets = u64::from(key[0]) + 1;
            let counter = has_counter.then_some(Counter { packets, bytes: packets * 60 });
            Element { key, key_end, data, comment, counter }
        })
        .boxed()
}

/// A set with elements for it.
fn elements(kernel: Abilities) -> impl Strategy<Value = (&'static str, Vec<Element>)> {
    let sets = SETS.into_iter().filter(|set| kernel.exact_ranges || *set != "ranges");
    let set = prop_oneof![3 => select(sets.collect::<Vec<_>>()), 2 => Just("verdicts")];
    set.prop_flat_map(move |set| (Just(set), vec(element(kernel, set), 1..4)))
}

fn rule(kernel: Abilities) -> impl Strategy<Value = Vec<Expr>> {
    const FIRST: Register = Register(0);
    let set = || select(&SETS[..]).prop_map(str::to_owned);
    let look_up = |set, wanted| Expr::Lookup { set, key: FIRST, wanted };
    let end = prop_oneof![
        4 => chain(kernel).prop_map(|chain| Expr::Verdict(Verdict::Jump(chain.to_owned()))),
        2 => chain(kernel).prop_map(|chain| Expr::Verdict(Verdict::Goto(chain.to_owned()))),
        1 => Just(Expr::Verdict(Verdict::Drop)),
        3 => Just(look_up("verdicts".to_owned(), Wanted::Verdict)),
        2 => Just(look_up("values".to_owned(), Wanted::Value(FIRST))),
        2 => (set(), select(&[Wanted::Member, Wanted::NoMember][..]))
            .prop_map(move |(set, wanted)| look_up(set, wanted)),
        1 => set().prop_map(move |map| look_up(map, Wanted::Verdict)),
        1 => set().prop_map(move |map| look_up(map, Wanted::Value(FIRST))),
    ];
    let load = Expr::network(0, 16, FIRST);
    end.prop_map(move |end| vec![load.clone(), end])
}

/// Anything.
pub(crate) fn operation(kernel: Abilities) -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (place(), flags(kernel)).prop_map(|(place, flags)| Operation::AddTable(place, flags)),
        1 => place().prop_map(Operation::DeleteTable),
        6 => (place(), select(&CHAINS[..]))
            .prop_flat_map(move |(place, chain)| (Just(place), Just(chain), base(kernel, chain)))
            .prop_map(|(place, chain, base)| Operation::AddChain(place, chain, base)),
        2 => (place(), select(&CHAINS[..])).prop_map(|(p, chain)| Operation::DeleteChain(p, chain)),
        1 => (place(), select(&CHAINS[..])).prop_map(|(p, chain)| Operation::FlushChain(p, chain)),
        10 => (place(), select(kernel.with_rules()), rule(kernel))
            .prop_map(|(place, chain, rule)| Operation::AddRule(place, chain, rule)),
        2 => (place(), 0_usize..6).prop_map(|(place, number)| Operation::DeleteRule(place, number)),
        4 => (place(), set()).prop_map(|(place, (set, kind))| Operation::AddSet(place, set, kind)),
        14 => (place(), elements(kernel)).prop_map(|(p, (set, list))| Operation::AddElements(p, set, list)),
        8 => (place(), elements(kernel))
            .prop_map(|(p, (set, list))| Operation::DeleteElements(p, set, list)),
    ]
}

/// A table with all its chains and sets, so that what comes later finds something.
pub(crate) fn whole_tables(kernel: Abilities) -> impl Strategy<Value = Vec<Operation>> {
    (place(), flags(kernel)).prop_map(|(place, flags)| {
        let usual_base = |chain| match chain {
            "base" => Some((ChainKind::Filter, Hook::Input, 0)),
            "nat" => Some((ChainKind::Nat, Hook::Output, -100)),
            _ => None,
        };
        let chains = CHAINS.map(|chain| {
            let base = usual_base(chain);
            let base = base.map(|(kind, hook, priority)| BaseChain { kind, hook, priority });
            Operation::AddChain(place, chain, base)
        });
        let sets = SETS.map(|set| Operation::AddSet(place, set, usual(set)));
        [Operation::AddTable(place, flags)].into_iter().chain(chains).chain(sets).collect()
    })
}

impl Operation {
    /// Adds the messages for it. A rule is found by asking the kernel for its number.
    pub(crate) fn write(&self, kernel: &mut dyn Kernel, batch: &mut Batch) -> Result<()> {
        match self {
            Operation::AddTable((family, table), flags) => {
                batch.add_table(*family, table, *flags, "a comment");
            }
            Operation::DeleteTable((family, table)) => batch.delete_table(*family, table),
            Operation::AddChain((family, table), chain, base) => {
                batch.add_chain(*family, table, chain, *base);
            }
            Operation::DeleteChain((family, table), chain) => {
                batch.delete_chain(*family, table, chain);
            }
            Operation::FlushChain((family, table), chain) => {
                batch.flush_chain(*family, table, chain);
            }
            Operation::AddRule((family, table), chain, exprs) => {
                batch.add_rule(*family, table, chain, exprs, None);
            }
            Operation::DeleteRule((family, table), number) => {
                let rules = kernel.rules(*family, table)?;
                let (chain, handle) = match rules.get(*number) {
                    Some(rule) => (rule.chain.as_str(), rule.handle),
                    None => ("one", 1 << 40),
                };
                batch.delete_rule(*family, table, chain, handle);
            }
            Operation::AddSet((family, table), set, kind) => {
                batch.add_set(*family, table, set, kind);
            }
            Operation::AddElements((family, table), set, elements) => {
                batch.add_elements(*family, table, set, &encoded(elements));
            }
            Operation::DeleteElements((family, table), set, elements) => {
                batch.delete_elements(*family, table, set, &encoded(elements));
            }
        }
        Ok(())
    }
}

fn encoded(elements: &[Element]) -> Elements {
    let mut encoded = Elements::new();
    for Element { key, key_end, data, comment, counter } in elements {
        let data = data.as_ref().map(|data| match data {
            Data::Value(value) => ElementData::Value(value),
            Data::Verdict(verdict) => ElementData::Verdict(*verdict),
        });
        match counter {
            Some(counter) => encoded.push_counted(key, data, *comment, *counter),
            None => encoded.push_range(key, key_end.as_deref(), data, *comment),
        }
    }
    encoded
}
