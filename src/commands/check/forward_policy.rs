//! Base chains of other programs that drop forwarded packets.

use nfnetlink::Family;
use nfnetlink::nft::{AttachedChain, NfProto, Socket};
use nfnetlink::xtables::legacy_forward_drops;

use super::{Judgement, NodeFacts, ok, some_of, warn};

pub(super) fn check(_: &NodeFacts<'_>) -> Judgement {
    let drops = |family: &Family| legacy_forward_drops(*family).unwrap_or(false);
    let legacy: Vec<Family> = [Family::Ip, Family::Ip6].into_iter().filter(drops).collect();
    let chains = Socket::open().and_then(|mut socket| socket.base_chains());
    judge(&chains.map_err(|error| format!("cannot list chains: {error}"))?, &legacy)
}

/// `legacy` are the families whose chain FORWARD of legacy iptables has the policy DROP.
fn judge(chains: &[AttachedChain], legacy: &[Family]) -> Judgement {
    let legacy = legacy.iter().map(|family| match family {
        Family::Ip => "FORWARD of iptables-legacy".to_owned(),
        Family::Ip6 => "FORWARD of ip6tables-legacy".to_owned(),
    });
    let dropping = chains
        .iter()
        .filter(|chain| drops_forwarded(chain))
        .map(|AttachedChain { family, table, chain, .. }| format!("{family} {table} {chain}"));
    let dropping: Vec<String> = dropping.chain(legacy).collect();
    if dropping.is_empty() {
        return ok("no chain with policy drop");
    }
    warn(
        format!("policy drop in {}; shunt's rules do not override it", some_of(dropping)),
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
        let text = judge(&[], &[Family::Ip6]).expect("a finding").text;
        assert!(text.starts_with("policy drop in FORWARD of ip6tables-legacy;"), "{text}");
    }
}
