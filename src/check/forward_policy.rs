//! Base chains of other programs that drop forwarded packets.

use nfnetlink::Family;
use nfnetlink::xtables::legacy_forward_drops;

use super::netlink::{ForwardChain, forward_chains};
use super::{Line, some_of};

/// The chains at the hook forward.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    nf_tables: Result<Vec<ForwardChain>, String>,
    /// The families whose chain FORWARD of legacy iptables has the policy DROP.
    legacy: Vec<Family>,
}

impl Facts {
    pub(super) fn gather() -> Facts {
        let drops = |family: &Family| legacy_forward_drops(*family).unwrap_or(false);
        Facts {
            nf_tables: forward_chains().map_err(|error| error.to_string()),
            legacy: [Family::Ip, Family::Ip6].into_iter().filter(drops).collect(),
        }
    }
}

pub(super) fn judge(facts: &Facts) -> Line {
    const NAME: &str = "forward-policy";
    let chains = match &facts.nf_tables {
        Ok(chains) => chains,
        Err(error) => return Line::skip(NAME, format!("chains cannot be listed: {error}")),
    };
    let legacy = facts.legacy.iter().map(|family| match family {
        Family::Ip => "FORWARD of iptables-legacy".to_owned(),
        Family::Ip6 => "FORWARD of ip6tables-legacy".to_owned(),
    });
    let dropping = chains.iter().filter(|chain| chain.drops).map(|chain| chain.name.clone());
    let dropping: Vec<String> = dropping.chain(legacy).collect();
    if dropping.is_empty() {
        return Line::ok(NAME, "no chain with policy drop");
    }
    Line::warn(
        NAME,
        format!("policy drop in {}; shunt's rules do not overrule it", some_of(dropping)),
        "accept connections to endpoints there, unless the network plugin does: `iptables -I FORWARD \
         -m conntrack --ctstate DNAT -j ACCEPT` (and ip6tables), or in nft `ct status dnat accept`",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Outcome::{Ok as Good, Skip, Warn};
    use super::*;

    #[test]
    fn chains_that_drop_are_named() {
        let chain = |name: &str, drops| ForwardChain { name: name.to_owned(), drops };
        let facts = Facts {
            nf_tables: Ok(vec![chain("ip filter FORWARD", true), chain("inet x y", false)]),
            legacy: vec![Family::Ip6],
        };
        let line = judge(&facts);
        assert_eq!(line.result, Warn);
        let names = "policy drop in ip filter FORWARD, FORWARD of ip6tables-legacy;";
        assert!(line.text.starts_with(names), "{}", line.text);
        let none = Facts { nf_tables: Ok(vec![chain("inet x y", false)]), legacy: Vec::new() };
        assert_eq!(judge(&none).result, Good);
        let unknown = Facts { nf_tables: Err("EPERM".to_owned()), legacy: Vec::new() };
        assert_eq!(judge(&unknown).result, Skip);
    }
}
