//! Base chains of all programs.

use anyhow::Result;
use nfnetlink::nft::{AttachedChain, NfProto, Socket};
use shunt_testbed::Netns;

/// Lists the base chains of a namespace.
fn chains(netns: &Netns) -> Result<Vec<AttachedChain>> {
    netns.run(|| Ok(Socket::open()?.base_chains()?))
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
fn families_without_tables_have_no_chains() -> Result<()> {
    assert_eq!(chains(&Netns::new()?)?, []);
    assert_eq!(NfProto::Inet.hook_name(2), "forward");
    Ok(())
}
