//! Asks the kernel whether it accepts shunt's tables, without a change that any packet meets.
//!
//! The probe is a transaction without an end: the kernel checks its messages and undoes them, as
//! for `nft --check`. Its table has a name of its own and is dormant, so that no packet meets the
//! base chains meanwhile. The kernel loads modules that the rules need, as for the agent itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, ElementData, Elements, Error, Expr, Hook, Kernel, Refusal,
    Register, TABLE_DORMANT, TableFamily, VerdictCode,
};
use nix::errno::Errno;
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::{
    ChainName, FrontendKey, Key, NodeContext, Pools, Set, SourceRange, base_chains, on_demand_chain,
};

use super::codec::{encode_backend, encode_key, encode_key_end, set_type, table_family};
use super::ownership::OWNED;
use super::translate::{base_chain, expressions};

/// The name of the table, which exists within the transaction only.
const PROBE: &str = "shunt-check";
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
}

/// The names of the features that [`missing_features`] tells apart.
pub fn features() -> impl Iterator<Item = &'static str> {
    FEATURES.iter().map(|feature| feature.name)
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
    let Some(refusal) = refusal(kernel, whole_table(node_context, family))? else {
        return Ok(Vec::new());
    };
    let mut missing = Vec::new();
    for feature in &FEATURES {
        if let Some(refusal) = self::refusal(kernel, feature.batch(family))? {
            missing.push(MissingFeature {
                feature: format!("{} ({})", feature.name, table_family(family)),
                option: feature.option,
                reason: why(&refusal),
            });
        }
    }
    if missing.is_empty() {
        missing.push(MissingFeature {
            feature: format!("{} ({})", refusal.operation, refusal.object),
            option: "CONFIG_NF_TABLES",
            reason: why(&refusal),
        });
    }
    Ok(missing)
}

/// Returns true if the kernel has tables with an owner that persist.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn has_owned_tables(kernel: &mut dyn Kernel) -> Result<bool, Error> {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, PROBE, OWNED, PROBE);
    match refusal(kernel, batch)? {
        None => Ok(true),
        Some(refusal) if matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL) => Ok(false),
        Some(refusal) => Err(Error::Refused(vec![refusal])),
    }
}

/// Returns the kernel's first refusal, if there is one.
fn refusal(kernel: &mut dyn Kernel, batch: Batch) -> Result<Option<Refusal>, Error> {
    match kernel.commit(&batch.finish_for_check()) {
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

/// Returns a transaction with all sets, chains and rules of a family, chains of session affinity
/// included, and an element of each kind.
fn whole_table(node_context: &NodeContext, family: Family) -> Batch {
    let table = table_family(family);
    let mut batch = Batch::new(None);
    batch.add_table(table, PROBE, TABLE_DORMANT, PROBE);
    for set in Set::ALL {
        batch.add_set(table, PROBE, set.name(), &set_type(family, set));
    }
    let on_demand = [
        ChainName::AffinityPostrouting,
        ChainName::AffinityInput,
        ChainName::AffinityTimeout(10_800),
        ChainName::Balancer { pools: Pools::Services, affinity: true, count: 1 },
    ];
    let mut chains = base_chains(node_context, family);
    chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
    for chain in &chains {
        batch.add_chain(table, PROBE, &chain.name.to_string(), chain.base.map(base_chain));
    }
    for chain in &chains {
        for rule in &chain.rules {
            let exprs = expressions(family, rule);
            batch.add_rule(table, PROBE, &chain.name.to_string(), &exprs, rule.comment);
        }
    }
    add_elements(family, &mut batch);
    batch
}

fn add_elements(family: Family, batch: &mut Batch) {
    // Addresses for documentation (RFC 5737, RFC 3849).
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let frontend = FrontendKey::Address(address, Protocol::Tcp, 80);
    let balancer = ChainName::Balancer { pools: Pools::Services, affinity: false, count: 1 };
    let balancer = balancer.to_string();
    let verdict = ElementData::Verdict(VerdictCode::Goto, Some(&balancer));
    let backend = encode_backend(Backend { address, port: 80 });
    let range = Key::Source(frontend, SourceRange { first: address, last: address });
    for (set, key, data) in [
        (Set::ClusterIps, Key::Address(address), None),
        (Set::ServiceIps, Key::Frontend(frontend), Some(verdict)),
        (Set::Endpoints, Key::Pool(frontend, 0), Some(ElementData::Value(backend.as_slice()))),
        (Set::AllowedSources, range, None),
    ] {
        let end = encode_key_end(key);
        let end = end.as_ref().map(|end| end.as_slice());
        let mut elements = Elements::new();
        elements.push_range(encode_key(key).as_slice(), end, data, None);
        batch.add_elements(table_family(family), PROBE, set.name(), &elements);
    }
}

/// A feature that a small transaction shows.
struct Feature {
    name: &'static str,
    option: &'static str,
    probe: Probe,
}

enum Probe {
    /// Base chains at these hooks.
    BaseChains(&'static [Hook]),
    /// A set.
    Set(Set),
    /// A rule in a base chain at this hook, with the set that it refers to.
    Rule(Hook, Option<Set>, fn(Family) -> Expr),
}

const FIRST: Register = Register(0);

const FEATURES: [Feature; 11] = [
    Feature {
        name: "nat chains",
        option: "CONFIG_NFT_NAT",
        probe: Probe::BaseChains(&[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]),
    },
    Feature {
        name: "numgen",
        option: "CONFIG_NFT_NUMGEN",
        probe: Probe::Rule(Hook::Prerouting, None, |_| Expr::Random { modulus: 2, to: FIRST }),
    },
    Feature {
        name: "fib",
        option: "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6",
        probe: Probe::Rule(Hook::Prerouting, None, |_| Expr::FibType { source: false, to: FIRST }),
    },
    Feature {
        name: "ct",
        option: "CONFIG_NFT_CT",
        probe: Probe::Rule(Hook::Postrouting, None, |_| Expr::CtStatus(FIRST)),
    },
    Feature {
        name: "dnat",
        option: "CONFIG_NFT_NAT",
        probe: Probe::Rule(Hook::Prerouting, None, |family| Expr::DestinationNat {
            v6: family == Family::V6,
            address: FIRST,
            port: Register(4),
        }),
    },
    Feature {
        name: "masquerade",
        option: "CONFIG_NFT_MASQ",
        probe: Probe::Rule(Hook::Postrouting, None, |_| Expr::Masquerade),
    },
    Feature {
        name: "reject in prerouting",
        option: "CONFIG_NFT_REJECT and Linux 5.9",
        probe: Probe::Rule(Hook::Prerouting, None, |family| Expr::Reject {
            v6: family == Family::V6,
        }),
    },
    Feature {
        name: "maps with concatenated keys",
        option: "CONFIG_NF_TABLES",
        probe: Probe::Set(Set::Endpoints),
    },
    Feature {
        name: "counters on elements",
        option: "CONFIG_NF_TABLES and Linux 5.7",
        probe: Probe::Set(Set::ServiceIps),
    },
    Feature {
        name: "ranges in concatenated keys",
        option: "CONFIG_NF_TABLES and Linux 5.6",
        probe: Probe::Set(Set::AllowedSources),
    },
    Feature {
        name: "maps that rules fill (dynset)",
        option: "CONFIG_NF_TABLES",
        probe: Probe::Rule(Hook::Postrouting, Some(Set::Affinity), |family| Expr::UpdateMap {
            map: Set::Affinity.name().to_owned(),
            key: FIRST,
            data: Register(if family == Family::V6 { 10 } else { 4 }),
            timeout: 1_000,
        }),
    },
];

impl Feature {
    fn batch(&self, family: Family) -> Batch {
        let table = table_family(family);
        let mut batch = Batch::new(None);
        batch.add_table(table, PROBE, TABLE_DORMANT, PROBE);
        let nat = |hook| BaseChain { kind: ChainKind::Nat, hook, priority: 0 };
        match &self.probe {
            Probe::BaseChains(hooks) => {
                for hook in *hooks {
                    batch.add_chain(table, PROBE, &format!("{hook:?}"), Some(nat(*hook)));
                }
            }
            Probe::Set(set) => batch.add_set(table, PROBE, set.name(), &set_type(family, *set)),
            Probe::Rule(hook, set, expr) => {
                if let Some(set) = set {
                    batch.add_set(table, PROBE, set.name(), &set_type(family, *set));
                }
                batch.add_chain(table, PROBE, CHAIN, Some(nat(*hook)));
                batch.add_rule(table, PROBE, CHAIN, &self.operands(family, expr(family)), None);
            }
        }
        batch
    }

    /// Returns the expression behind others that fill its registers: newer kernels refuse registers
    /// without content.
    fn operands(&self, family: Family, expr: Expr) -> Vec<Expr> {
        let load = |offset, length, to| Expr::NetworkHeader { offset, length, to };
        let mut exprs = match (&expr, family) {
            (Expr::UpdateMap { .. } | Expr::DestinationNat { .. }, Family::V4) => {
                vec![load(0, 16, FIRST), load(0, 16, Register(4))]
            }
            (Expr::UpdateMap { .. } | Expr::DestinationNat { .. }, Family::V6) => {
                vec![load(0, 32, FIRST), load(0, 32, Register(8))]
            }
            _ => Vec::new(),
        };
        exprs.push(expr);
        exprs
    }
}

#[cfg(test)]
mod tests {
    use nfnetlink::nft::{
        DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, FinishedBatch, Generation,
    };
    use shunt_core::plan::{DetectLocal, Options};

    use super::*;

    /// A kernel that refuses each transaction with one of these words.
    struct Without<'a>(&'a [&'a [u8]]);

    impl Kernel for Without<'_> {
        fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error> {
            let has = |word: &&[u8]| batch.bytes().windows(word.len()).any(|w| w == *word);
            match self.0.iter().any(has) {
                true => Err(Error::Refused(vec![batch.refusal(1, Errno::ENOENT, None)])),
                false => Ok(()),
            }
        }

        fn generation(&mut self) -> Result<Generation, Error> {
            Err(Error::Interrupted)
        }

        fn port(&self) -> u32 {
            0
        }

        fn reconnect(&mut self) -> Result<(), Error> {
            Ok(())
        }

        fn table(&mut self, _: TableFamily, _: &str) -> Result<Option<DumpedTable>, Error> {
            Ok(None)
        }

        fn chains(&mut self, _: TableFamily, _: &str) -> Result<Vec<DumpedChain>, Error> {
            Ok(Vec::new())
        }

        fn sets(&mut self, _: TableFamily, _: &str) -> Result<Vec<DumpedSet>, Error> {
            Ok(Vec::new())
        }

        fn rules(&mut self, _: TableFamily, _: &str) -> Result<Vec<DumpedRule>, Error> {
            Ok(Vec::new())
        }

        fn elements(
            &mut self,
            _: TableFamily,
            _: &str,
            _: &str,
            _: &mut dyn FnMut(DumpedElement<'_>),
        ) -> Result<(), Error> {
            Ok(())
        }

        fn start_listing(&mut self, _: TableFamily, _: &str, _: &str) -> Result<(), Error> {
            Ok(())
        }

        fn next_part(&mut self, _: &mut dyn FnMut(DumpedElement<'_>)) -> Result<bool, Error> {
            Ok(false)
        }
    }

    fn node_context() -> NodeContext {
        let net = |text: &str| text.parse().expect("a prefix");
        let detect_local = DetectLocal::ClusterCidr(vec![net("10.0.0.0/8"), net("fd00::/48")]);
        NodeContext {
            options: Options { detect_local, ..Options::default() },
            node_name: "node-1".to_owned(),
            node: None,
            interface_addresses: Default::default(),
            service_cidrs: vec![net("10.96.0.0/16"), net("fd00:96::/108")],
        }
    }

    fn missing(words: &[&[u8]], family: Family) -> Vec<String> {
        let missing = missing_features(&mut Without(words), &node_context(), family);
        missing.expect("an answer").into_iter().map(|missing| missing.feature).collect()
    }

    #[test]
    fn each_missing_feature_is_named() {
        for (word, feature) in [
            (b"numgen\0".as_slice(), "numgen (ip)"),
            (b"\x08\0\x01\0fib\0", "fib (ip)"),
            (b"\x07\0\x01\0ct\0", "ct (ip)"),
            (b"masq\0", "masquerade (ip)"),
            (b"reject\0", "reject in prerouting (ip)"),
            (b"dynset\0", "maps that rules fill (dynset) (ip)"),
            (b"counter\0", "counters on elements (ip)"),
            (b"allowed-sources\0", "ranges in concatenated keys (ip)"),
            (b"\x08\0\x01\0nat\0", "dnat (ip)"),
        ] {
            assert_eq!(missing(&[word], Family::V4), [feature]);
        }
        let two = missing(&[b"numgen\0", b"masq\0"], Family::V6);
        assert_eq!(two, ["numgen (ip6)", "masquerade (ip6)"]);
        assert_eq!(missing(&[], Family::V4), [""; 0]);
    }

    #[test]
    fn refusal_without_a_known_feature_is_named_by_its_object() {
        assert_eq!(missing(&[b"nodeport-ips\0"], Family::V4), ["add table ()"]);
    }
}
