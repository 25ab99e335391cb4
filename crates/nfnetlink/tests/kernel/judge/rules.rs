//! Single rules of nft and iptables-nft.

use anyhow::{Context as _, Result};
use nfnetlink::nft::{JudgedPacket, Mark, Passing};
use shunt_testbed::Netns;

use super::{TCP, UDP, judged, section, short, to_endpoint};

/// Sets and chains that rules of `matches.txt` refer to.
const SETS: &str = "
        set ports { type inet_service; elements = { 80, 8080 }; }
        set ranges { type ipv4_addr; flags interval;
            elements = { 10.0.0.0/16, 10.244.1.0-10.244.1.7, 10.244.1.9, 240.0.0.0/4 }; }
        set high { type inet_service; flags interval; elements = { 8000-65535 }; }
        set pairs { type ipv4_addr . inet_service; elements = { 10.244.1.7 . 8080 }; }
        set pair_ranges { type ipv4_addr . inet_proto . inet_service; flags interval;
            elements = { 10.244.0.0/16 . tcp . 8000-8080, 10.245.0.0/16 . udp . 53 }; }
        set with_timeout { type ipv4_addr; timeout 1h; elements = { 192.0.2.9 }; }
        set seen { type ipv4_addr; flags dynamic; elements = { 192.0.2.9 }; }
        set limited { type ipv4_addr; limit rate 1/second; elements = { 192.0.2.9 }; }
        set empty { type ipv4_addr; }
        set everything { type ipv4_addr; elements = { 1.1.1.1, * }; }
        map marks { type inet_service : mark; elements = { 8080 : 0x77 }; }
        map mark_ranges { type ipv4_addr : mark; flags interval;
            elements = { 10.243.0.0/16 : 7, 10.244.0.0/16 : 5, * : 6 }; }
        map verdicts { type inet_service : verdict; elements = { 8080 : continue, 80 : return }; }
        chain next {}";

/// Returns the hook of a section of `matches.txt`, and its rules behind their signs.
fn rules(name: &str) -> Result<(&'static str, Vec<(&'static str, &'static str)>)> {
    let mut lines = section(include_str!("matches.txt"), name);
    let hook = lines.next().context("no such section")?;
    Ok((hook, lines.map(|line| line.split_at(2)).collect()))
}

/// The sign of a rule that drops, by what it does with a packet.
fn sign(passing: &Passing) -> &'static str {
    match passing {
        Passing::Drops(_) => "+ ",
        Passing::Passes => "- ",
        Passing::May { .. } => "? ",
    }
}

/// Adds a rule.
fn iptables(netns: &Netns, rule: &str) -> Result<()> {
    netns.output("iptables-nft", &rule.split(' ').collect::<Vec<_>>()).map(drop)
}

#[test]
fn matches_of_nft_are_decoded() -> Result<()> {
    let marked = JudgedPacket { mark: 0x10.into(), ..to_endpoint() };
    let unknown = JudgedPacket { input: None, output: None, is_local: None, ..to_endpoint() };
    let direct = JudgedPacket { translated: false, ..to_endpoint() };
    // A packet from the loopback interface is tracked already.
    let looped = JudgedPacket { input: Some("lo".to_owned()), ..direct.clone() };
    let (client, endpoint) = ("2001:db8::9".parse()?, "fd00:10:244::7".parse()?);
    let v6 = JudgedPacket {
        original_destination: "fd00:10:96::1".parse()?,
        translated: true,
        ..JudgedPacket::new(UDP, client, endpoint, 53)
    };
    for (name, packet) in [
        ("headers", &to_endpoint()),
        ("properties", &marked),
        ("unknown properties", &unknown),
        ("unknown properties of sent packets", &unknown),
        ("unknown properties of received packets", &unknown),
        ("connections", &to_endpoint()),
        ("without translation", &direct),
        ("before connection tracking", &direct),
        ("from the loopback interface", &looped),
        ("after the source is translated", &direct),
        ("sets and maps", &to_endpoint()),
        ("IPv6", &v6),
    ] {
        let (netns, (hook, rules)) = (Netns::new()?, rules(name)?);
        let mut table = SETS.to_owned();
        for (number, (_, rule)) in rules.iter().enumerate() {
            table += &format!("\nchain c{number} {{ type filter hook {hook}; {rule} drop; }}");
        }
        netns.nft(&format!("table inet t {{ {table}\n}}"))?;
        let judged = judged(&netns, packet)?;
        for (number, (expected, rule)) in rules.into_iter().enumerate() {
            let found = sign(&judged[&format!("c{number}")].passing);
            assert_eq!((found, rule), (expected, rule), "{name}");
        }
    }
    Ok(())
}

#[test]
fn verdicts_lead_the_packet() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table inet t {
            chain drops { counter drop; }
            chain returns { return; drop; }
            chain ends { counter; }
            chain deep { jump returns; goto drops; }
            chain sometimes { tcp sport 5 accept; tcp sport 6 return; tcp sport 7 jump drops; }
            chain after_jump { type filter hook forward priority 0; jump returns; drop; }
            chain after_goto { type filter hook forward priority 0; goto ends; drop; }
            chain goto_policy { type filter hook forward priority 0; policy drop; goto ends; accept; }
            chain return_policy { type filter hook forward priority 0; policy drop; return; accept; }
            chain nested { type filter hook forward priority 0; jump deep; accept; }
            chain rejects { type filter hook forward priority 0; reject with tcp reset; }
            chain open { type filter hook forward priority 0; policy drop; jump sometimes; tcp sport 8 accept; }
            chain both_drop { type filter hook forward priority 0; tcp sport 9 drop; drop; }
            chain both_pass { type filter hook forward priority 0; tcp sport 9 accept; }
            chain marks { type filter hook forward priority 0;
                meta mark set 0xf0; tcp sport 9 meta mark set 0xf1; tcp sport 8 jump ends; }
            chain by_policy { type filter hook forward priority 0; policy drop; tcp dport 1 accept; }
        }
        table ip6 other { chain other_family { type filter hook forward priority 0; drop; }; }
        table ip off { flags dormant; chain off { type filter hook forward priority 0; drop; }; }",
    )?;
    let judged = judged(&netns, &to_endpoint())?;
    for (chain, expected) in [
        ("after_jump", "drops: drop in after_jump"),
        ("after_goto", "passes"),
        ("goto_policy", "drops: policy drop in goto_policy"),
        ("return_policy", "drops: policy drop in return_policy"),
        ("nested", "drops: drop in drops"),
        ("rejects", "drops: reject in rejects"),
        ("open", "may: drop in drops"),
        ("both_drop", "drops: drop in both_drop"),
        ("both_pass", "passes"),
        ("marks", "passes"),
        ("by_policy", "drops: policy drop in by_policy"),
        ("other_family", "passes"),
        ("off", "passes"),
    ] {
        assert_eq!((chain, short(&judged[chain]).as_str()), (chain, expected), "{judged:?}");
    }
    assert_eq!(judged["marks"].mark, Mark { value: 0xf0, known: !1 });
    let Passing::May { why, .. } = &judged["open"].passing else { unreachable!() };
    assert!(why.contains("the source port is not known (handle "), "{why}");
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
            tcp dport 8080 drop
            }
        }",
    )?;
    let listing = netns.output("nft", &["--handle", "list", "chain", "ip", "t", "c"])?;
    let line = listing.lines().find(|line| line.contains("drop")).context("no rule")?;
    let handle: u64 = line.rsplit(' ').next().context("no handle")?.parse()?;
    let Passing::Drops(place) = &judged(&netns, &to_endpoint())?["c"].passing else {
        anyhow::bail!("the rule was not found");
    };
    assert_eq!(place.rule, Some(handle));
    assert_eq!(place.to_string(), format!("drop in the rule with handle {handle} of chain c"));
    Ok(())
}

#[test]
fn translations_before_the_service_are_found() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table ip t {
            chain hit { type nat hook prerouting priority -100; tcp dport 80 dnat to 1.2.3.4; }
            chain open { type nat hook prerouting priority -100; tcp sport 80 redirect; }
            chain miss { type nat hook prerouting priority -100; tcp dport 81 dnat to 1.2.3.4; }
            chain masks { type nat hook postrouting priority 100; masquerade; }
            chain snats { type nat hook postrouting priority 100; snat to 1.2.3.4; }
            chain untracks { type filter hook prerouting priority -300; tcp dport 80 notrack; }
            chain late { type filter hook forward priority 0; notrack; }
            chain rewrites { type filter hook prerouting priority -300; ip daddr set 1.2.3.4; }
            chain harmless { type filter hook prerouting priority -300; ip dscp set cs1; }
        }",
    )?;
    let packet = JudgedPacket::new(TCP, [192, 0, 2, 9].into(), [10, 96, 0, 1].into(), 80);
    let packet = JudgedPacket { input: Some("eth0".to_owned()), ..packet };
    let judged = judged(&netns, &packet)?;
    let found = |chain: &str| judged[chain].translation.as_ref().map(|place| place.what.as_str());
    assert_eq!(found("hit"), Some("dnat"));
    assert_eq!(found("open"), Some("redirect"));
    assert_eq!(found("miss"), None);
    assert_eq!(found("masks"), Some("masquerade"));
    assert_eq!(found("snats"), Some("snat"));
    assert_eq!(found("untracks"), Some("notrack"));
    assert_eq!(found("late"), None);
    assert_eq!(found("rewrites"), Some("a change of an address"));
    assert_eq!(found("harmless"), None);
    assert!(judged.values().all(|it| it.passing == Passing::Passes), "{judged:?}");
    Ok(())
}

#[test]
fn matches_of_iptables_are_decoded() -> Result<()> {
    let netns = Netns::new()?;
    let packet = JudgedPacket { mark: 0x4000.into(), ..to_endpoint() };
    for (expected, rule) in rules("iptables")?.1 {
        iptables(&netns, &format!("-I FORWARD {rule} -j DROP"))?;
        let judged = judged(&netns, &packet)?;
        assert_eq!((sign(&judged["FORWARD"].passing), rule), (expected, rule), "{judged:?}");
        iptables(&netns, "-F FORWARD")?;
    }
    Ok(())
}

#[test]
fn targets_of_iptables_lead_the_packet() -> Result<()> {
    for (target, expected) in [
        ("ACCEPT", "passes"),
        ("RETURN", "passes"),
        ("LOG --log-prefix x", "drops: drop in FORWARD"),
        ("NFLOG", "drops: drop in FORWARD"),
        ("MARK --set-mark 1", "drops: drop in FORWARD"),
        ("REJECT", "drops: reject in FORWARD"),
        ("NFQUEUE --queue-num 1", "may: NFQUEUE in FORWARD"),
        ("TCPMSS --clamp-mss-to-pmtu", "drops: drop in FORWARD"),
        ("OTHER", "drops: drop in OTHER"),
    ] {
        let netns = Netns::new()?;
        let target = match target {
            "TCPMSS --clamp-mss-to-pmtu" => format!("-p tcp --syn -j {target}"),
            _ => format!("-p tcp -j {target}"),
        };
        for rule in [
            "-N OTHER",
            "-A OTHER -m mark --mark 2 -j RETURN",
            "-A OTHER -j DROP",
            &format!("-A FORWARD {target}"),
            "-A FORWARD -j DROP",
        ] {
            iptables(&netns, rule)?;
        }
        let packet = JudgedPacket { mark: 0.into(), ..to_endpoint() };
        // RETURN ends the chain, and the policy accepts.
        let found = short(&judged(&netns, &packet)?["FORWARD"]).to_lowercase();
        assert_eq!(found, expected.to_lowercase(), "{target}");
    }
    Ok(())
}

#[test]
fn marks_of_iptables_are_followed() -> Result<()> {
    let netns = Netns::new()?;
    for rule in [
        "-t mangle -A FORWARD -j MARK --set-xmark 0x4000/0x4000",
        "-t mangle -A FORWARD -j MARK --set-xmark 0x0/0x1",
    ] {
        iptables(&netns, rule)?;
    }
    let mark = judged(&netns, &to_endpoint())?["FORWARD"].mark;
    assert_eq!(mark, Mark { value: 0x4000, known: 0x4001 });
    iptables(&netns, "-t mangle -A FORWARD -j CONNMARK --restore-mark --mask 0xf000")?;
    let mark = judged(&netns, &to_endpoint())?["FORWARD"].mark;
    assert_eq!(mark, Mark { value: 0, known: 1 });
    Ok(())
}

#[test]
fn huge_chains_are_not_followed_to_the_end() -> Result<()> {
    let netns = Netns::new()?;
    let rules = "tcp sport 1 accept\n".repeat(12_000);
    netns.nft(&format!(
        "table ip t {{
            chain big {{ type filter hook forward priority 0; {rules} drop; }}
            chain early {{ type filter hook forward priority 0; jump accepts; {rules} drop; }}
            chain accepts {{ accept; }}
        }}"
    ))?;
    let judged = judged(&netns, &to_endpoint())?;
    let Passing::May { why, .. } = &judged["big"].passing else {
        anyhow::bail!("{:?}", judged["big"]);
    };
    assert!(why.contains("more than 10000 rules"), "{why}");
    assert_eq!(judged["early"].passing, Passing::Passes);
    Ok(())
}
