//! `remove`: what kube-proxy leaves goes, everything else in the same tables stays.

use anyhow::Result;
use nfnetlink::nft::Socket;
use shunt::dataplane::{Removed, Scope, remove};
use shunt_core::model::Change;
use shunt_fake_nftables::service;
use shunt_testbed::Netns;

use super::cluster::dataplane;

const KUBE_PROXY: Scope = Scope { own: false, kube_proxy: true };

/// Rules in tables of iptables that are not kube-proxy's: of the administrator, of the kubelet, and
/// of kube-router, which k3s brings along.
const FOREIGN: &str = "
    add table ip nat
    add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
    add chain ip nat OUTPUT { type nat hook output priority -100; }
    add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }
    add chain ip nat DOCKER
    add chain ip nat KUBE-KUBELET-CANARY
    add rule ip nat PREROUTING fib daddr type local counter jump DOCKER
    add rule ip nat POSTROUTING ip saddr 172.17.0.0/16 counter masquerade
    add table ip filter
    add chain ip filter INPUT { type filter hook input priority 0; }
    add chain ip filter FORWARD { type filter hook forward priority 0; }
    add chain ip filter OUTPUT { type filter hook output priority 0; }
    add chain ip filter KUBE-FIREWALL
    add chain ip filter KUBE-ROUTER-INPUT
    add chain ip filter KUBE-POD-FW-ABCDEFGHIJKLMNOP
    add chain ip filter KUBE-NWPLCY-ABCDEFGHIJKLMNOP
    add rule ip filter KUBE-FIREWALL ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 counter drop
    add rule ip filter KUBE-ROUTER-INPUT counter jump KUBE-POD-FW-ABCDEFGHIJKLMNOP
    add rule ip filter KUBE-POD-FW-ABCDEFGHIJKLMNOP jump KUBE-NWPLCY-ABCDEFGHIJKLMNOP
    add rule ip filter INPUT counter jump KUBE-ROUTER-INPUT
    add rule ip filter INPUT counter jump KUBE-FIREWALL
    add rule ip filter INPUT tcp dport 22 counter accept
    add table ip mangle
    add chain ip mangle KUBE-IPTABLES-HINT
    add table ip6 nat
    add chain ip6 nat PREROUTING { type nat hook prerouting priority -100; }
    add table inet kube-proxy
    add table ip kube-proxy-of-somebody
";

/// What kube-proxy in iptables mode has for one Service, with the rules in places between those of
/// others.
const IPTABLES: &str = "
    add chain ip nat KUBE-SERVICES
    add chain ip nat KUBE-NODEPORTS
    add chain ip nat KUBE-POSTROUTING
    add chain ip nat KUBE-MARK-MASQ
    add chain ip nat KUBE-PROXY-CANARY
    add chain ip nat KUBE-SVC-ERIFXISQEP7F7OF4
    add chain ip nat KUBE-EXT-ERIFXISQEP7F7OF4
    add chain ip nat KUBE-SEP-IT2ZTR26TO4XFPTO
    add chain ip nat KUBE-SEP-YIL6JZP7A3QYXJU2
    add rule ip nat KUBE-MARK-MASQ counter meta mark set mark or 0x4000
    add rule ip nat KUBE-POSTROUTING meta mark and 0x4000 != 0x4000 counter return
    add rule ip nat KUBE-POSTROUTING counter masquerade fully-random
    add rule ip nat KUBE-SERVICES ip daddr 10.96.0.10 tcp dport 53 counter jump KUBE-SVC-ERIFXISQEP7F7OF4
    add rule ip nat KUBE-SERVICES fib daddr type local counter jump KUBE-NODEPORTS
    add rule ip nat KUBE-NODEPORTS tcp dport 30053 counter jump KUBE-EXT-ERIFXISQEP7F7OF4
    add rule ip nat KUBE-EXT-ERIFXISQEP7F7OF4 counter jump KUBE-MARK-MASQ
    add rule ip nat KUBE-EXT-ERIFXISQEP7F7OF4 goto KUBE-SVC-ERIFXISQEP7F7OF4
    add rule ip nat KUBE-SVC-ERIFXISQEP7F7OF4 numgen random mod 2 0 jump KUBE-SEP-IT2ZTR26TO4XFPTO
    add rule ip nat KUBE-SVC-ERIFXISQEP7F7OF4 counter jump KUBE-SEP-YIL6JZP7A3QYXJU2
    add rule ip nat KUBE-SEP-IT2ZTR26TO4XFPTO ip saddr 10.244.0.2 counter jump KUBE-MARK-MASQ
    add rule ip nat KUBE-SEP-IT2ZTR26TO4XFPTO tcp dport 53 dnat to 10.244.0.2:53
    add rule ip nat KUBE-SEP-YIL6JZP7A3QYXJU2 tcp dport 53 dnat to 10.244.0.3:53
    insert rule ip nat PREROUTING counter jump KUBE-SERVICES
    add rule ip nat OUTPUT counter jump KUBE-SERVICES
    add rule ip nat POSTROUTING counter jump KUBE-POSTROUTING
    add chain ip filter KUBE-SERVICES
    add chain ip filter KUBE-FORWARD
    add chain ip filter KUBE-NODEPORTS
    add chain ip filter KUBE-EXTERNAL-SERVICES
    add chain ip filter KUBE-PROXY-FIREWALL
    add rule ip filter KUBE-FORWARD ct state invalid counter drop
    insert rule ip filter INPUT ct state new counter jump KUBE-PROXY-FIREWALL
    insert rule ip filter INPUT counter jump KUBE-NODEPORTS
    insert rule ip filter INPUT ct state new counter jump KUBE-EXTERNAL-SERVICES
    insert rule ip filter FORWARD counter jump KUBE-FORWARD
    insert rule ip filter OUTPUT ct state new counter jump KUBE-SERVICES
    add chain ip mangle KUBE-PROXY-CANARY
    add chain ip6 nat KUBE-SERVICES
    add rule ip6 nat PREROUTING counter jump KUBE-SERVICES
";

/// kube-proxy in nftables mode.
const NFTABLES: &str = "
    add table ip kube-proxy
    add chain ip kube-proxy services
    add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
    add table ip6 kube-proxy
";

fn tables(ns: &Netns) -> Result<String> {
    // Handles tell a rule that stayed from one that was written anew.
    ns.output("nft", &["--handle", "--stateless", "list", "ruleset"])
}

fn removed(ns: &Netns, scope: Scope) -> Result<Removed> {
    ns.run(|| Ok(remove(&mut Socket::open()?, scope)?))
}

#[test]
fn what_kube_proxy_left_goes_in_one_transaction_and_nothing_else_does() -> Result<()> {
    let ns = Netns::new()?;
    ns.nft(FOREIGN)?;
    let before = tables(&ns)?;
    ns.nft(IPTABLES)?;
    ns.nft(NFTABLES)?;
    let generation = ns.nft_generation()?;
    let report = removed(&ns, KUBE_PROXY)?;
    assert_eq!(tables(&ns)?, before);
    assert_eq!(ns.nft_generation()?, generation + 1);
    let expected = Removed { kube_proxy_tables: 2, kube_proxy_chains: 16, ..Removed::default() };
    assert_eq!(report, expected);

    assert!(removed(&ns, KUBE_PROXY)?.is_nothing());
    assert_eq!(ns.nft_generation()?, generation + 1, "nothing left, nothing written");
    Ok(())
}

#[test]
fn chains_that_rules_of_others_go_to_stay_with_all_that_they_go_to() -> Result<()> {
    let ns = Netns::new()?;
    ns.nft(FOREIGN)?;
    ns.nft(
        "add chain ip nat KUBE-MARK-MASQ
         add chain ip nat KUBE-SVC-ERIFXISQEP7F7OF4
         add chain ip nat KUBE-SEP-IT2ZTR26TO4XFPTO
         add rule ip nat KUBE-MARK-MASQ counter meta mark set mark or 0x4000
         add rule ip nat KUBE-SEP-IT2ZTR26TO4XFPTO ip saddr 10.244.0.2 counter jump KUBE-MARK-MASQ
         add rule ip nat KUBE-SVC-ERIFXISQEP7F7OF4 counter jump KUBE-SEP-IT2ZTR26TO4XFPTO
         add rule ip nat DOCKER ip daddr 192.0.2.7 counter jump KUBE-SVC-ERIFXISQEP7F7OF4
         add rule ip nat PREROUTING ip daddr 192.0.2.8 counter jump KUBE-MARK-MASQ",
    )?;
    let before = tables(&ns)?;
    ns.nft(
        "add chain ip nat KUBE-SERVICES
         add rule ip nat KUBE-SERVICES ip daddr 10.96.0.10 counter jump KUBE-SVC-ERIFXISQEP7F7OF4
         add rule ip nat PREROUTING counter jump KUBE-SERVICES",
    )?;
    let report = removed(&ns, KUBE_PROXY)?;
    assert_eq!(tables(&ns)?, before);
    assert_eq!(report.kube_proxy_chains, 1);
    assert_eq!(
        report.kept,
        [
            "ip nat KUBE-MARK-MASQ",
            "ip nat KUBE-SEP-IT2ZTR26TO4XFPTO",
            "ip nat KUBE-SVC-ERIFXISQEP7F7OF4"
        ]
    );
    Ok(())
}

#[test]
fn removal_without_scope_removes_nothing() -> Result<()> {
    let ns = Netns::new()?;
    ns.nft(NFTABLES)?;
    dataplane(&ns, vec![Change::service(service(1))])?.sync()?;
    let names = |ns: &Netns| ns.output("nft", &["list", "tables"]);
    let all = names(&ns)?;
    assert!(removed(&ns, Scope { own: false, kube_proxy: false })?.is_nothing());
    assert_eq!(names(&ns)?, all);
    assert_eq!(removed(&ns, KUBE_PROXY)?.kube_proxy_tables, 2);
    assert_eq!(names(&ns)?, "table ip shunt\ntable ip6 shunt\n");
    ns.nft(NFTABLES)?;
    assert_eq!(removed(&ns, Scope { own: true, kube_proxy: false })?.own_tables, 2);
    assert_eq!(names(&ns)?, "table ip kube-proxy\ntable ip6 kube-proxy\n");
    Ok(())
}
