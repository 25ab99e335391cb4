//! Base chains of all programs, and whether they may drop packets.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use nfnetlink::nft::{AttachedChain, MayDrop, NfProto, Socket};
use shunt_testbed::Netns;

/// Lists the base chains of a namespace.
fn chains(netns: &Netns) -> Result<Vec<AttachedChain>> {
    netns.run(|| Ok(Socket::open()?.base_chains()?))
}

/// Judges the base chains of a namespace; the key is the name of the chain.
fn judged(netns: &Netns) -> Result<BTreeMap<String, MayDrop>> {
    netns.run(|| {
        let mut socket = Socket::open()?;
        let chains = socket.base_chains()?;
        chains
            .into_iter()
            .map(|chain| Ok((chain.chain.clone(), socket.can_drop(&chain)?)))
            .collect()
    })
}

#[test]
fn base_chains_of_all_families_are_listed() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table inet firewalld {
            chain filter_FORWARD { type filter hook forward priority 10; accept; accept; }
            chain no_hook {}
        }
        table ip one { chain translate { type nat hook prerouting priority -100; }; }
        table ip6 two { chain leave { type route hook output priority -150; policy drop; }; }
        table arp three { chain enter { type filter hook input priority 0; }; }
        table bridge four { chain bridged { type filter hook forward priority 0; }; }
        table netdev five {
            chain enter { type filter hook ingress device \"lo\" priority -500; }
        }",
    )?;
    let mut lines: Vec<String> = chains(&netns)?
        .iter()
        .map(|chain| {
            let AttachedChain { kind, rules, devices, drops_by_default, .. } = chain;
            let policy = if *drops_by_default { "drop" } else { "accept" };
            format!("{chain} {kind} {} {policy} {rules} {}", chain.hook_name(), devices.join(","))
        })
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "arp three enter (priority 0) filter input accept 0 ",
            "bridge four bridged (priority 0) filter forward accept 0 ",
            "inet firewalld filter_FORWARD (priority 10) filter forward accept 2 ",
            "ip one translate (priority -100) nat prerouting accept 0 ",
            "ip6 two leave (priority -150) route output drop 0 ",
            "netdev five enter (priority -500) filter ingress accept 0 lo",
        ]
    );
    Ok(())
}

#[test]
fn chains_of_a_hook_come_in_the_order_of_the_kernel() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table ip a { chain late { type filter hook forward priority 10; }; }
        table ip b { chain early { type filter hook forward priority -10; }; }
        table inet c { chain middle { type filter hook forward priority 0; }; }",
    )?;
    let names: Vec<String> = chains(&netns)?.into_iter().map(|chain| chain.chain).collect();
    assert_eq!(names, ["early", "middle", "late"]);
    Ok(())
}

#[test]
fn statements_that_end_the_way_of_a_packet_are_found() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table inet t {
            map verdicts { type inet_service : verdict; elements = { 80 : accept, 81 : jump rejects }; }
            map harmless { type inet_service : verdict; elements = { 80 : accept, 81 : return }; }
            chain rejects { counter reject; }
            chain deeper { jump rejects; }
            chain quiet { meta mark set 1 counter accept; }
            chain never {
                type filter hook forward priority 0;
                ct state established accept
                tcp dport vmap @harmless
                tcp dport { 80, 81 } log jump quiet
                ip saddr 192.0.2.0/24 limit rate 1/second counter return
            }
            chain by_default { type filter hook forward priority 1; policy drop; accept; }
            chain drops { type filter hook forward priority 2; accept; tcp dport 80 counter drop; }
            chain jumping { type filter hook forward priority 3; tcp dport 1 goto deeper; }
            chain named { type filter hook forward priority 5; tcp dport vmap @verdicts; }
            chain anonymous {
                type filter hook forward priority 6;
                tcp dport vmap { 1 : accept, 2 : drop }
            }
        }",
    )?;
    let judged = judged(&netns)?;
    let found = |name: &str| match &judged[name] {
        MayDrop::Rule { chain, what, handle } if *handle > 0 => format!("{chain}: {what}"),
        other => format!("{other:?}"),
    };
    assert_eq!(found("never"), "Never");
    assert_eq!(found("by_default"), "Policy");
    assert_eq!(found("drops"), "drops: drop");
    assert_eq!(found("jumping"), "rejects: reject");
    assert_eq!(found("named"), "rejects: reject");
    assert_eq!(found("anonymous"), "anonymous: drop");
    Ok(())
}

#[test]
fn handle_is_the_one_that_nft_shows() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table ip t {
            chain c {
            type filter hook forward priority 0;
            tcp dport 1 accept
            tcp dport 2 drop
            }
        }",
    )?;
    let listing = netns.output("nft", &["--handle", "list", "chain", "ip", "t", "c"])?;
    let line = listing.lines().find(|line| line.contains("drop")).context("no rule")?;
    let handle = line.rsplit(' ').next().context("no handle")?.parse()?;
    let (chain, what) = ("c".to_owned(), "drop".to_owned());
    assert_eq!(judged(&netns)?["c"], MayDrop::Rule { chain, handle, what });
    Ok(())
}

#[test]
fn rules_of_iptables_are_judged_by_their_targets() -> Result<()> {
    for (rules, expected) in [
        (&["-A FORWARD -m conntrack --ctstate NEW -j MARK --set-mark 1"][..], "Never"),
        (&["-A FORWARD -p tcp --dport 80 -j DROP"], "FORWARD: drop"),
        (&["-N KUBE", "-A KUBE -p udp -j REJECT", "-A FORWARD -j KUBE"], "KUBE: reject"),
        (&["-P FORWARD DROP"], "Policy"),
    ] {
        let netns = Netns::new()?;
        for rule in rules {
            netns.output("iptables-nft", &rule.split(' ').collect::<Vec<_>>())?;
        }
        let found = match &judged(&netns)?["FORWARD"] {
            MayDrop::Rule { chain, what, .. } => format!("{chain}: {}", what.to_lowercase()),
            other => format!("{other:?}"),
        };
        assert_eq!(found, expected, "{rules:?}");
    }
    Ok(())
}

#[test]
fn huge_tables_are_not_read_to_the_end() -> Result<()> {
    let netns = Netns::new()?;
    let rules = "counter accept\n".repeat(12_000);
    netns.nft(&format!(
        "table ip t {{
            chain big {{ type filter hook forward priority 0; {rules} drop; }}
        }}"
    ))?;
    let judged = judged(&netns)?;
    assert!(matches!(&judged["big"], MayDrop::Unknown(why) if why.contains("10000")), "{judged:?}");
    Ok(())
}

#[test]
fn families_without_tables_have_no_chains() -> Result<()> {
    assert_eq!(chains(&Netns::new()?)?, []);
    assert_eq!(NfProto::Inet.hook_name(2), "forward");
    Ok(())
}
