//! Base chains of other programs that drop forwarded packets.

use nfnetlink::Family;
use nfnetlink::nft::{AttachedChain, Error, NfProto, Socket};
use nfnetlink::xtables::legacy_forward_drops;

use super::{Line, some_of};

/// The base chains.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    nf_tables: Result<Vec<AttachedChain>, String>,
    /// The families whose chain FORWARD of legacy iptables has the policy DROP.
    legacy: Vec<Family>,
}

impl Facts {
    pub(super) fn gather() -> Facts {
        let drops = |family: &Family| legacy_forward_drops(*family).unwrap_or(false);
        let chains = Socket::open().and_then(|mut socket| socket.base_chains());
        Facts {
            nf_tables: chains.map_err(|error: Error| error.to_string()),
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
    let dropping = chains
        .iter()
        .filter(|chain| drops_forwarded(chain))
        .map(|AttachedChain { family, table, chain, .. }| format!("{family} {table} {chain}"));
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

/// Returns true if forwarded IP packets meet the chain, and its policy drops them.
fn drops_forwarded(chain: &AttachedChain) -> bool {
    let is_ip = matches!(chain.family, NfProto::Inet | NfProto::Ip | NfProto::Ip6);
    is_ip && chain.hook_name() == "forward" && chain.drops_by_default
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packet tests have chains of nf_tables.
    #[test]
    fn chains_of_legacy_iptables_are_named() {
        let line = judge(&Facts { nf_tables: Ok(Vec::new()), legacy: vec![Family::Ip6] });
        assert!(
            line.text.starts_with("policy drop in FORWARD of ip6tables-legacy;"),
            "{}",
            line.text
        );
    }
}
