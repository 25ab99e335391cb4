//! Asks the kernel whether it accepts shunt's tables, without a change that any packet meets.
//!
//! One transaction creates a table with everything, and the next one deletes it at once. (The kernel
//! validates rules as a whole only at a commit: without one, as for `nft --check`, Linux 6.18 accepts
//! masquerade in prerouting.) The table has a name of its own and is dormant: no packet meets its
//! base chains. Where the kernel can, the table belongs to the socket, and vanishes with it. The
//! kernel loads modules that the rules need, as for the agent itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nfnetlink::nft::{
    BaseChain, Batch, ChainType, Elements, Error, Expr, Hook, Kernel, Refusal, Register,
    TABLE_DORMANT, TABLE_OWNER, TableFamily,
};
use nix::errno::Errno;
use shunt_core::model::{Backend, Balancing, Family, Protocol};
use shunt_core::plan::{
    ChainName, Element, FrontendKey, GONE_ENDPOINTS, HASH_SEED, Key, NodeContext, Pools, Set,
    SourceRange, TcpTimeouts, Value, base_chains, on_demand_chain,
};

use super::codec::{gone_set_type, push, set_type, table_family};
use super::translate::{base_chain, expressions};

/// The name of the only chain of a small transaction.
const CHAIN: &str = "probe";

/// A feature of the kernel that shunt's rules need, and that this kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFeature {
    /// The name, with the table family.
    pub feature: String,
    /// The option of the kernel's configuration.
    pub option: &'static str,
    /// The kernel's answer.
    pub reason: String,
    /// Services work without the feature.
    pub is_optional: bool,
}

/// The names of the features that [`missing_features`] tells apart.
pub fn features() -> impl Iterator<Item = &'static str> {
    FEATURES.iter().chain([&HASHING]).map(|Feature(name, ..)| *name)
}

/// Returns the features of the kernel that shunt's rules of a family need, and that it lacks.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn missing_features(
    kernel: &mut dyn Kernel,
    node_context: &NodeContext,
    family: Family,
) -> Result<Vec<MissingFeature>, Error> {
    let mut probe = Probe::new(kernel, family);
    let whole = |batch: &mut Batch, name: &str| whole_table(node_context, family, batch, name);
    let Some(refusal) = probe.refusal(whole)? else { return Ok(Vec::new()) };
    let mut missing = Vec::new();
    let hashing = (node_context.options.balancing != Balancing::Random).then_some(&HASHING);
    for feature in FEATURES.iter().chain(hashing) {
        let &Feature(name, option, ref object) = feature;
        let small = |batch: &mut Batch, table: &str| object.add(family, batch, table);
        if let Some(refusal) = probe.refusal(small)? {
            missing.push(MissingFeature {
                feature: format!("{name} ({})", table_family(family)),
                option,
                reason: why(&refusal),
                is_optional: matches!(object, Object::Timeouts),
            });
        }
    }
    if missing.is_empty() {
        let Refusal { operation, object, .. } = &refusal;
        missing.push(MissingFeature {
            feature: format!("{operation} {object} ({})", table_family(family)),
            option: "CONFIG_NF_TABLES",
            reason: why(&refusal),
            is_optional: false,
        });
    }
    Ok(missing)
}

/// Returns true if the kernel refused a table because of its flags.
fn are_unknown_flags(refusal: &Refusal) -> bool {
    let is_about_table = refusal.object.is_empty() && refusal.operation == "add table";
    is_about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Returns a name for a table that no other process uses: the netlink port is unique.
fn table_name(kernel: &dyn Kernel) -> String {
    format!("shunt-check-{}", kernel.port())
}

/// Tries transactions in a table of its own.
struct Probe<'a> {
    kernel: &'a mut dyn Kernel,
    table: TableFamily,
    name: String,
    /// The table vanishes with the socket (Linux 5.12), if the process ends before the deletion.
    owner: u32,
}

impl<'a> Probe<'a> {
    fn new(kernel: &'a mut dyn Kernel, family: Family) -> Probe<'a> {
        let name = table_name(kernel);
        Probe { kernel, table: table_family(family), name, owner: TABLE_OWNER }
    }

    /// Returns the kernel's first refusal of a table with the objects that `add` adds.
    fn refusal(&mut self, add: impl Fn(&mut Batch, &str)) -> Result<Option<Refusal>, Error> {
        let refusal = self.attempt(&add)?;
        if self.owner != 0 && refusal.as_ref().is_some_and(are_unknown_flags) {
            self.owner = 0;
            return self.attempt(&add);
        }
        Ok(refusal)
    }

    fn attempt(&mut self, add: impl Fn(&mut Batch, &str)) -> Result<Option<Refusal>, Error> {
        let Probe { kernel, table, name, owner } = self;
        let mut batch = Batch::new(None);
        batch.add_table(*table, name, TABLE_DORMANT | *owner, name);
        add(&mut batch, name);
        let refusal = first_refusal(kernel.commit(&batch.finish()))?;
        if refusal.is_none() {
            let mut batch = Batch::new(None);
            batch.delete_table(*table, name);
            kernel.commit(&batch.finish())?;
        }
        Ok(refusal)
    }
}

fn first_refusal(result: Result<(), Error>) -> Result<Option<Refusal>, Error> {
    match result {
        Ok(()) => Ok(None),
        Err(Error::Refused(refusals)) => Ok(refusals.into_iter().next()),
        Err(error) => Err(error),
    }
}

fn why(refusal: &Refusal) -> String {
    let Refusal { errno, explanation, .. } = refusal;
    match explanation {
        Some(text) => format!("{}: {text}", errno.desc()),
        None => errno.desc().to_owned(),
    }
}

/// Adds all sets, chains and rules of a family, chains of session affinity included, and an element
/// of each kind.
fn whole_table(node_context: &NodeContext, family: Family, batch: &mut Batch, name: &str) {
    let table = table_family(family);
    for set in Set::ALL {
        batch.add_set(table, name, set.name(), &set_type(family, set));
    }
    let mut on_demand = vec![
        ChainName::AffinityPostrouting,
        ChainName::AffinityInput,
        ChainName::AffinityTimeout(10_800),
        balancer(true),
    ];
    let (pools, balancing) = (Pools::Services, node_context.options.balancing);
    if balancing != Balancing::Random {
        on_demand.push(ChainName::Balancer { pools, balancing, affinity: false, count: 2 });
    }
    if node_context.options.reset_gone_endpoints {
        batch.add_set(table, name, GONE_ENDPOINTS, &gone_set_type(family));
        on_demand.extend(ChainName::FOR_GONE_ENDPOINTS);
    }
    if let Some(timeouts) = node_context.options.tcp_timeouts {
        batch.add_tcp_timeouts(table, name, &timeouts.name(), timeouts.seconds());
    }
    let mut chains = base_chains(node_context, family);
    chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
    for chain in &chains {
        batch.add_chain(table, name, &chain.name.to_string(), chain.base.map(base_chain));
    }
    for chain in &chains {
        for rule in &chain.rules {
            let exprs = expressions(family, rule);
            batch.add_rule(table, name, &chain.name.to_string(), &exprs, rule.comment.as_deref());
        }
    }
    add_elements(family, batch, name);
}

fn balancer(affinity: bool) -> ChainName {
    let (pools, balancing) = (Pools::Services, Balancing::Random);
    ChainName::Balancer { pools, balancing, affinity, count: 1 }
}

fn add_elements(family: Family, batch: &mut Batch, name: &str) {
    // Addresses for documentation (RFC 5737, RFC 3849).
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let frontend = FrontendKey::Address(address, Protocol::Tcp, 80);
    let (goto, backend) = (Value::Goto(balancer(false)), Backend { address, port: 80 });
    let range = Key::Source(frontend, SourceRange { first: address, last: address });
    for (set, key, value) in [
        (Set::ClusterIps, Key::Address(address), None),
        (Set::ServiceIps, Key::Frontend(frontend), Some(goto)),
        (Set::Endpoints, Key::Pool(frontend, 0), Some(Value::Backend(backend))),
        (Set::AllowedSources, range, None),
    ] {
        let mut elements = Elements::new();
        push(&Element { set, key, value, comment: None }, None, &mut elements);
        batch.add_elements(table_family(family), name, set.name(), &elements);
    }
}

/// A feature that a small transaction with the object shows, with its name and option.
struct Feature(&'static str, &'static str, Object);

enum Object {
    /// Base chains at these hooks.
    BaseChains(&'static [Hook]),
    /// A set.
    Set(Set),
    /// An object `ct timeout`. No packet uses it, so its deletion is safe on any kernel.
    Timeouts,
    /// A rule in a base chain at this hook, with the set that it refers to.
    Rule(Hook, Option<Set>, fn(Family) -> Expr),
}

const FIRST: Register = Register(0);

/// Needed by hash tables only.
const HASHING: Feature = Feature(
    "hash",
    "CONFIG_NFT_HASH",
    Object::Rule(Hook::PreRouting, None, |_| Expr::Hash {
        key: FIRST,
        length: 4,
        modulus: 2,
        seed: HASH_SEED,
        to: FIRST,
    }),
);

const FEATURES: [Feature; 12] = [
    Feature(
        "nat chains",
        "CONFIG_NFT_NAT",
        Object::BaseChains(&[Hook::PreRouting, Hook::In, Hook::Out, Hook::PostRouting]),
    ),
    Feature(
        "numgen",
        "CONFIG_NFT_NUMGEN",
        Object::Rule(Hook::PreRouting, None, |_| Expr::Number {
            modulus: 2,
            random: true,
            to: FIRST,
        }),
    ),
    Feature(
        "fib",
        "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6",
        Object::Rule(Hook::PreRouting, None, |_| Expr::address_type(false, FIRST)),
    ),
    Feature(
        "ct",
        "CONFIG_NFT_CT",
        Object::Rule(Hook::PostRouting, None, |_| Expr::Ct {
            key: libc::NFT_CT_STATUS,
            direction: None,
            to: FIRST,
        }),
    ),
    Feature("ct timeout", "CONFIG_NF_CONNTRACK_TIMEOUT", Object::Timeouts),
    Feature(
        "dnat",
        "CONFIG_NFT_NAT",
        Object::Rule(Hook::PreRouting, None, |family| {
            Expr::destination_nat(table_family(family), FIRST, Register(4))
        }),
    ),
    Feature(
        "masquerade",
        "CONFIG_NFT_MASQ",
        Object::Rule(Hook::PostRouting, None, |_| Expr::Masquerade { fully_random: true }),
    ),
    Feature(
        "reject in prerouting",
        "CONFIG_NFT_REJECT_IPV4 and CONFIG_NFT_REJECT_IPV6 (Linux 5.9)",
        Object::Rule(Hook::PreRouting, None, |family| Expr::port_unreachable(table_family(family))),
    ),
    Feature("maps with concatenated keys", "CONFIG_NF_TABLES", Object::Set(Set::Endpoints)),
    Feature("counters on elements", "CONFIG_NF_TABLES (Linux 5.7)", Object::Set(Set::ServiceIps)),
    Feature(
        "ranges in concatenated keys",
        "CONFIG_NF_TABLES (Linux 5.6)",
        Object::Set(Set::AllowedSources),
    ),
    Feature(
        "maps that rules fill (dynset)",
        "CONFIG_NF_TABLES",
        Object::Rule(Hook::PostRouting, Some(Set::Affinity), |family| Expr::Update {
            set: Set::Affinity.name().to_owned(),
            key: FIRST,
            data: Some(Register(if family == Family::V6 { 10 } else { 4 })),
            timeout: 1_000,
            renew: true,
        }),
    ),
];

impl Object {
    fn add(&self, family: Family, batch: &mut Batch, name: &str) {
        let table = table_family(family);
        let nat = |hook| BaseChain { kind: ChainType::Nat, hook, priority: 0 };
        match self {
            Object::BaseChains(hooks) => {
                for hook in *hooks {
                    batch.add_chain(table, name, &format!("{hook:?}"), Some(nat(*hook)));
                }
            }
            Object::Timeouts => {
                let timeouts = TcpTimeouts::default();
                batch.add_tcp_timeouts(table, name, &timeouts.name(), timeouts.seconds());
            }
            Object::Set(set) => batch.add_set(table, name, set.name(), &set_type(family, *set)),
            Object::Rule(hook, set, expr) => {
                if let Some(set) = set {
                    batch.add_set(table, name, set.name(), &set_type(family, *set));
                }
                batch.add_chain(table, name, CHAIN, Some(nat(*hook)));
                batch.add_rule(table, name, CHAIN, &operands(family, expr(family)), None);
            }
        }
    }
}

/// Returns the expression behind others that fill its registers: newer kernels refuse registers
/// without content.
fn operands(family: Family, expr: Expr) -> Vec<Expr> {
    let load = Expr::network;
    let mut exprs = match (&expr, family) {
        (Expr::Update { .. } | Expr::Nat { .. }, Family::V4) => {
            vec![load(0, 16, FIRST), load(0, 16, Register(4))]
        }
        (Expr::Update { .. } | Expr::Nat { .. }, Family::V6) => {
            vec![load(0, 32, FIRST), load(0, 32, Register(8))]
        }
        (Expr::Hash { .. }, _) => vec![load(0, 4, FIRST)],
        _ => Vec::new(),
    };
    exprs.push(expr);
    exprs
}

#[cfg(test)]
mod tests {
    use shunt_core::model::Store;
    use shunt_core::plan::Options;
    use shunt_fake_nftables::{Call, Fault, Faulty, Namespace};

    use super::*;

    /// What is missing in a kernel that refuses each transaction with one of these words.
    fn missing(words: &'static [&[u8]], family: Family, balancing: Balancing) -> Vec<String> {
        let refuse = move |call: Call<'_>| {
            let Call::Commit(batch) = call else { return None };
            let has = |word: &&[u8]| batch.bytes().windows(word.len()).any(|w| w == *word);
            let refusal = || Error::Refused(vec![batch.refusal(1, Errno::ENOENT, None)]);
            words.iter().any(has).then(|| Fault::Before(refusal()))
        };
        let options = Options { balancing, ..Options::default() };
        let node_context = NodeContext::of(&Store::new(), &options, "node-1");
        let mut kernel = Faulty::new(Namespace::new().open(), refuse);
        let missing = missing_features(&mut kernel, &node_context, family).expect("an answer");
        missing.into_iter().map(|missing| missing.feature).collect()
    }

    #[test]
    fn each_missing_feature_is_named() {
        const CASES: [(&[&[u8]], &str); 13] = [
            (&[b"numgen\0"], "numgen (ip)"),
            (&[b"\x08\0\x01\0fib\0"], "fib (ip)"),
            (&[b"\x07\0\x01\0ct\0"], "ct (ip)"),
            (&[b"masq\0"], "masquerade (ip)"),
            (&[b"tcp-"], "ct timeout (ip)"),
            (&[b"reject\0"], "reject in prerouting (ip)"),
            (&[b"dynset\0"], "maps that rules fill (dynset) (ip)"),
            (&[b"counter\0"], "counters on elements (ip)"),
            (&[b"allowed-sources\0"], "ranges in concatenated keys (ip)"),
            (&[b"\x08\0\x01\0nat\0"], "dnat (ip)"),
            // No feature that is known.
            (&[b"nodeport-ips\0"], "add table  (ip)"),
            (&[b"hash\0"], ""),
            (&[], ""),
        ];
        for (words, feature) in CASES {
            assert_eq!(missing(words, Family::V4, Balancing::Random).concat(), feature);
        }
        assert_eq!(missing(&[b"hash\0"], Family::V4, Balancing::SourceHash), ["hash (ip)"]);
        let two = missing(&[b"numgen\0", b"masq\0"], Family::V6, Balancing::Random);
        assert_eq!(two, ["numgen (ip6)", "masquerade (ip6)"]);
    }
}
