//! Single rules of nft and iptables-nft.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use nfnetlink::nft::{Interface, JudgedPacket, Mark, Passing};
use shunt_testbed::Netns;

use super::{TCP, UDP, judged, short, to_endpoint};

/// What a rule that drops does with a packet.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Does {
    Match,
    Miss,
    Unknown,
}
use Does::{Match, Miss, Unknown};

impl Does {
    fn of(passing: &Passing) -> Does {
        match passing {
            Passing::Drops(_) => Match,
            Passing::Passes => Miss,
            Passing::May { .. } => Unknown,
        }
    }
}

/// Judges each match of nft as a rule that drops, in a table with these sets.
fn check_matches(
    sets: &str,
    hook: &str,
    packet: &JudgedPacket,
    matches: &[(&str, Does)],
) -> Result<()> {
    let netns = Netns::new()?;
    let chains: String = (0..)
        .zip(matches)
        .map(|(number, (rule, _))| {
            format!("chain c{number} {{ type filter hook {hook}; {rule} drop; }}\n")
        })
        .collect();
    netns.nft(&format!("table inet t {{ {sets}\n{chains} }}"))?;
    let judged = judged(&netns, packet)?;
    let found: Vec<(&str, Does)> = (0..)
        .zip(matches)
        .map(|(number, (rule, _))| (*rule, Does::of(&judged[&format!("c{number}")].passing)))
        .collect();
    assert_eq!(found, matches);
    Ok(())
}

#[test]
fn headers_are_matched() -> Result<()> {
    let matches = [
        ("ip saddr 192.0.2.9", Match),
        ("ip saddr 192.0.2.0/24", Match),
        ("ip saddr 192.0.2.0/23", Match),
        ("ip saddr != 192.0.2.9", Miss),
        ("ip daddr 10.244.1.7", Match),
        ("ip daddr 10.96.0.1", Miss),
        ("ip daddr 10.0.0.0/8 ip saddr 10.0.0.0/8", Miss),
        ("ip daddr >= 10.244.0.0 ip daddr <= 10.244.1.7", Match),
        ("ip daddr < 10.244.1.7", Miss),
        ("ip daddr > 10.244.1.6", Match),
        ("ip daddr 10.244.1.1-10.244.1.9", Match),
        ("ip daddr != 10.244.1.1-10.244.1.9", Miss),
        ("ip protocol tcp", Match),
        ("ip protocol udp", Miss),
        ("ip version 4", Match),
        ("ip ttl 64", Unknown),
        ("ip frag-off & 0x1fff != 0", Miss),
        ("ip6 daddr fd00::7", Miss),
        ("meta nfproto ipv4", Match),
        ("meta nfproto ipv6", Miss),
        ("meta protocol ip", Match),
        ("meta l4proto tcp", Match),
        ("meta l4proto { udp, tcp }", Match),
        ("meta l4proto udp", Miss),
        ("tcp dport 8080", Match),
        ("tcp dport 80", Miss),
        ("tcp dport 8000-8100", Match),
        ("tcp dport != 8000-8100", Miss),
        ("th dport 8080", Match),
        ("udp dport 8080", Miss),
        ("tcp sport 1024-65535", Unknown),
        ("tcp sport 0-65535", Match),
        ("tcp flags syn / fin,syn,rst,ack", Match),
        ("tcp flags & (fin|syn) == (fin|syn)", Miss),
        ("tcp flags ack", Miss),
        ("tcp flags cwr", Unknown),
        ("@th,16,16 8080", Match),
        ("@nh,128,32 & 0xff000000 == 0x0a000000", Match),
    ];
    check_matches("", "forward priority 0", &to_endpoint(), &matches)
}

#[test]
fn properties_of_the_packet_are_matched() -> Result<()> {
    let matches = [
        ("iifname \"eth0\"", Match),
        ("iifname \"eth1\"", Miss),
        ("iifname \"et*\"", Match),
        ("iifname \"cali*\"", Miss),
        ("oifname != \"cni0\"", Miss),
        ("iifname . oifname { \"eth0\" . \"cni0\" }", Match),
        ("iifname { \"eth*\", \"lo\" }", Match),
        ("iif lo", Miss),
        ("oif lo", Unknown),
        ("iifgroup 0", Unknown),
        ("meta iifkind \"veth\"", Unknown),
        ("meta mark 0x10", Match),
        ("meta mark & 0x10 == 0x10", Match),
        ("meta mark and 0xff0 != 0x10", Miss),
        ("meta mark 5-20", Match),
        ("meta mark < 16", Miss),
        ("meta mark set 0x4000 meta mark 0x4000", Match),
        ("meta mark set meta mark or 0x4000 meta mark 0x4010", Match),
        ("meta mark set meta mark << 4 meta mark 0x100", Match),
        ("meta mark set ct mark meta mark 0", Unknown),
        ("ct mark set 7 ct mark 7", Match),
        ("ct mark 0", Unknown),
        ("meta skuid 0", Unknown),
        ("meta priority set 1:1", Match),
        ("meta nftrace set 1 counter log prefix \"x\"", Match),
        ("limit rate 1/second", Unknown),
        ("numgen random mod 2 == 0", Unknown),
        ("fib daddr type local", Miss),
        ("fib daddr type unicast", Match),
        ("fib daddr . iif type local", Unknown),
        ("fib saddr type local", Unknown),
        ("rt classid 1", Unknown),
    ];
    let input = Interface { name: "eth0".to_owned(), index: Some(2) };
    let packet = JudgedPacket { mark: 0x10.into(), input: Some(input), ..to_endpoint() };
    check_matches("", "forward priority 0", &packet, &matches)
}

#[test]
fn unknown_properties_decide_nothing_that_depends_on_them() -> Result<()> {
    let packet = JudgedPacket { input: None, output: None, is_local: None, ..to_endpoint() };
    let matches = [
        ("iifname \"eth0\"", Unknown),
        ("oifname != \"cni0\"", Unknown),
        ("iif lo", Unknown),
        ("iifname \"eth0\" tcp dport 80", Miss),
        ("meta mark 1", Unknown),
        ("meta mark and 0 == 0", Match),
        ("meta mark set meta mark and 0xff00 meta mark and 0xff == 1", Miss),
        ("fib daddr type local", Unknown),
        ("iifname \"eth0\" accept; iifname \"eth0\" counter", Unknown),
    ];
    check_matches("", "forward priority 0", &packet, &matches)?;
    // A packet has no input interface at the output hook, and no output interface at prerouting.
    let matches = [("iifname \"\"", Match), ("iifname \"eth0\"", Miss), ("iif 0", Match)];
    check_matches("", "output priority 0", &packet, &matches[1..])?;
    let matches = [("oifname \"eth0\"", Miss), ("oifname != \"eth0\"", Match)];
    check_matches("", "prerouting priority 0", &packet, &matches)
}

#[test]
fn connections_are_matched() -> Result<()> {
    let matches = [
        ("ct state new", Match),
        ("ct state invalid", Miss),
        ("ct state established,related", Miss),
        ("ct state != new", Miss),
        ("ct state { new, untracked }", Match),
        ("ct status dnat", Match),
        ("ct status snat", Miss),
        ("ct status assured", Miss),
        ("ct status dying", Unknown),
        ("ct direction original", Match),
        ("ct direction reply", Miss),
        ("ct original ip daddr 10.96.0.1", Match),
        ("ct original ip saddr 192.0.2.0/24", Match),
        ("ct original ip6 daddr fd00::1", Miss),
        ("meta l4proto tcp ct original proto-dst 80", Match),
        ("meta l4proto tcp ct original proto-dst 8080", Miss),
        ("meta l4proto tcp ct original proto-src 1024", Unknown),
        ("ct reply ip saddr 10.244.1.7", Match),
        ("ct reply ip daddr 192.0.2.9", Match),
        ("meta l4proto tcp ct reply proto-src 8080", Match),
        ("ct l3proto ipv4", Match),
        ("ct protocol tcp", Match),
        ("ct helper \"ftp\"", Unknown),
        ("ct zone 0", Unknown),
        ("notrack ct state new", Match),
    ];
    check_matches("", "forward priority 0", &to_endpoint(), &matches)?;
    let direct = JudgedPacket { translated: false, ..to_endpoint() };
    let matches = [("ct status dnat", Miss), ("ct status & dnat == 0", Match)];
    check_matches("", "forward priority 0", &direct, &matches)?;
    // Connection tracking comes after this chain.
    let matches = [
        ("ct state new", Miss),
        ("ct state invalid", Match),
        ("ct status dnat", Miss),
        ("ct mark 0", Miss),
        ("notrack ct state untracked", Match),
    ];
    check_matches("", "prerouting priority -300", &direct, &matches)?;
    // A packet from the loopback interface is tracked already.
    let looped = JudgedPacket { input: Some(Interface::named("lo")), ..direct.clone() };
    check_matches("", "prerouting priority -300", &looped, &[("ct state new", Unknown)])?;
    // The source may be translated at this point.
    let matches = [("ct original ip saddr 192.0.2.9", Unknown), ("ct status snat", Unknown)];
    check_matches("", "postrouting priority 150", &direct, &matches)
}

#[test]
fn sets_and_maps_are_searched() -> Result<()> {
    let sets = "
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
            elements = { 10.244.0.0/16 : 5, * : 6 }; }
        map verdicts { type inet_service : verdict; elements = { 8080 : continue, 80 : return }; }
        chain next {}";
    let matches = [
        ("tcp dport @ports", Match),
        ("tcp dport != @ports", Miss),
        ("tcp sport @ports", Unknown),
        ("tcp dport { 80, 443 }", Miss),
        ("tcp dport { 80, 8000-9000 }", Match),
        ("tcp dport @high", Match),
        ("ip daddr @ranges", Match),
        ("ip saddr @ranges", Miss),
        ("ip daddr . tcp dport @pairs", Match),
        ("ip saddr . tcp dport @pairs", Miss),
        ("ip daddr . tcp sport @pairs", Unknown),
        ("ip daddr . meta l4proto . th dport @pair_ranges", Match),
        ("ip saddr . meta l4proto . th dport @pair_ranges", Miss),
        ("ip daddr . meta l4proto . th sport @pair_ranges", Unknown),
        ("ip saddr @with_timeout", Match),
        ("ip saddr @seen", Unknown),
        ("ip saddr @limited", Unknown),
        ("ip daddr @limited", Miss),
        ("ip saddr @empty", Miss),
        ("ip saddr != @empty", Match),
        ("ip saddr @everything", Match),
        ("update @seen { ip saddr }", Unknown),
        ("meta mark set tcp dport map @marks meta mark 0x77", Match),
        ("meta mark set tcp dport map { 80 : 1, 8080 : 2 } meta mark 2", Match),
        ("meta mark set tcp sport map { 80 : 1, 8080 : 2 } meta mark 2", Unknown),
        ("meta mark set ip daddr map @mark_ranges meta mark 5", Match),
        ("meta mark set ip saddr map @mark_ranges meta mark 6", Match),
        ("tcp dport vmap @verdicts; tcp dport 8080", Match),
        ("tcp dport vmap { 1 : drop, 8080 : jump next }; counter", Match),
        ("tcp dport vmap { 1 : drop, 8080 : goto next }; counter", Miss),
        ("tcp dport vmap { 1 : drop, 8080 : accept }; counter", Miss),
        ("tcp dport vmap { 1-7999 : accept, 8000-9000 : drop }; accept; counter", Match),
        ("tcp sport vmap { 1 : accept, 2 : return }; counter", Unknown),
        ("tcp sport vmap { 1 : drop }; counter", Match),
        ("iifname vmap { \"eth*\" : accept }; counter", Miss),
        ("ip saddr . tcp dport vmap { 192.0.2.9 . 8080 : accept }; counter", Miss),
    ];
    check_matches(sets, "forward priority 0", &to_endpoint(), &matches)
}

#[test]
fn rules_of_ipv6_are_matched() -> Result<()> {
    let client: IpAddr = "2001:db8::9".parse()?;
    let packet = JudgedPacket {
        original_destination: "fd00:10:96::1".parse()?,
        translated: true,
        source_port: Some(40_000),
        ..JudgedPacket::new(UDP, client, "fd00:10:244::7".parse()?, 53)
    };
    let matches = [
        ("ip6 saddr 2001:db8::/32", Match),
        ("ip6 daddr fd00:10:244::7", Match),
        ("ip6 daddr != fd00:10:244::/64", Miss),
        ("ip6 nexthdr udp", Match),
        ("ip6 nexthdr tcp", Miss),
        ("ip daddr 10.0.0.1", Miss),
        ("udp dport 53 udp sport 40000", Match),
        ("udp sport < 1024", Miss),
        ("ct original ip6 daddr fd00:10:96::1", Match),
        ("exthdr frag exists", Unknown),
        ("ip6 daddr { fd00:10:244::/48, fd01::/16 }", Match),
        ("meta nfproto ipv6", Match),
    ];
    check_matches("", "forward priority 0", &packet, &matches)
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
    assert!(why.contains("the source port is not known (rule "), "{why}");
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
    assert_eq!(place.to_string(), format!("drop in rule {handle} of chain c"));
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
            chain untracks { type filter hook prerouting priority -300; tcp dport 80 notrack; }
            chain late { type filter hook forward priority 0; notrack; }
            chain rewrites { type filter hook prerouting priority -300; ip daddr set 1.2.3.4; }
            chain harmless { type filter hook prerouting priority -300; ip dscp set cs1; }
        }",
    )?;
    let packet = JudgedPacket::new(TCP, [192, 0, 2, 9].into(), [10, 96, 0, 1].into(), 80);
    let packet = JudgedPacket { input: Some(Interface::named("eth0")), ..packet };
    let judged = judged(&netns, &packet)?;
    let found = |chain: &str| judged[chain].translation.as_ref().map(|place| place.what.as_str());
    assert_eq!(found("hit"), Some("dnat"));
    assert_eq!(found("open"), Some("redirect"));
    assert_eq!(found("miss"), None);
    assert_eq!(found("masks"), Some("masquerade"));
    assert_eq!(found("untracks"), Some("notrack"));
    assert_eq!(found("late"), None);
    assert_eq!(found("rewrites"), Some("a change of an address"));
    assert_eq!(found("harmless"), None);
    assert!(judged.values().all(|it| it.passing == Passing::Passes), "{judged:?}");
    Ok(())
}

#[test]
fn matches_and_targets_of_iptables_are_decoded() -> Result<()> {
    let netns = Netns::new()?;
    let packet = JudgedPacket { mark: 0x4000.into(), ..to_endpoint() };
    for (rule, does) in [
        ("-p tcp --dport 8080", Match),
        ("-p tcp --dport 8000:9000", Match),
        ("-p tcp ! --dport 8000:9000", Miss),
        ("-p tcp --sport 1:5", Unknown),
        ("-p tcp --syn", Match),
        ("-p tcp ! --syn", Miss),
        ("-p tcp --tcp-flags ALL NONE", Miss),
        ("-p tcp --tcp-option 5", Unknown),
        ("-p udp --dport 8080", Miss),
        ("! -p udp", Match),
        ("-p tcp -m multiport --dports 80,8080", Match),
        ("-p tcp -m multiport --dports 80,8000:8100,9", Match),
        ("-p tcp -m multiport ! --dports 80,8000:8100", Miss),
        ("-p tcp -m multiport --dports 80,443", Miss),
        ("-p tcp -m multiport --sports 80,443", Unknown),
        ("-p tcp -m multiport --ports 80,8080", Match),
        ("-s 192.0.2.0/24 -d 10.244.1.7", Match),
        ("! -s 192.0.2.0/24", Miss),
        ("-i eth0 -o cni0", Match),
        ("-i eth+ -o cali+", Miss),
        ("! -i eth0", Miss),
        ("-f", Miss),
        ("-m comment --comment kubernetes", Match),
        ("-m conntrack --ctstate NEW", Match),
        ("-m conntrack --ctstate INVALID", Miss),
        ("-m conntrack --ctstate RELATED,ESTABLISHED", Miss),
        ("-m conntrack ! --ctstate RELATED,ESTABLISHED", Match),
        ("-m conntrack --ctstate RELATED,ESTABLISHED,DNAT", Match),
        ("-m conntrack --ctstate SNAT", Miss),
        ("-m conntrack --ctstatus ASSURED", Miss),
        ("-m conntrack --ctorigdst 10.96.0.0/16", Match),
        ("-m conntrack --ctorigdst 10.97.0.0/16", Miss),
        ("-m conntrack --ctorigdstport 80", Match),
        ("-m conntrack --ctorigdstport 81:90", Miss),
        ("-m conntrack --ctorigsrcport 80", Unknown),
        ("-m conntrack --ctreplsrc 10.244.1.7 --ctproto tcp", Match),
        ("-m conntrack --ctdir ORIGINAL", Match),
        ("-m conntrack --ctdir REPLY", Miss),
        ("-m conntrack --ctexpire 10", Unknown),
        ("-m state --state NEW", Match),
        ("-m state --state ESTABLISHED", Miss),
        ("-m mark --mark 0x4000/0x4000", Match),
        ("-m mark ! --mark 0x4000/0x4000", Miss),
        ("-m mark --mark 0x8000/0x8000", Miss),
        ("-m connmark --mark 1", Unknown),
        ("-m addrtype --dst-type LOCAL", Miss),
        ("-m addrtype ! --dst-type LOCAL", Match),
        ("-m addrtype --src-type LOCAL", Unknown),
        ("-m addrtype --dst-type LOCAL --limit-iface-out", Unknown),
        ("-m iprange --src-range 192.0.2.1-192.0.2.10", Match),
        ("-m iprange ! --src-range 192.0.2.1-192.0.2.10", Miss),
        ("-m iprange --dst-range 10.244.1.8-10.244.1.10", Miss),
        ("-m limit --limit 1/s", Unknown),
        ("-m statistic --mode random --probability 0.5", Unknown),
        ("-m physdev --physdev-is-bridged", Unknown),
        ("-m tcp -p tcp --dport 8080 -m conntrack --ctstate NEW -m comment --comment x", Match),
    ] {
        let add = format!("-I FORWARD {rule} -j DROP");
        netns.output("iptables-nft", &add.split(' ').collect::<Vec<_>>())?;
        let judged = judged(&netns, &packet)?;
        assert_eq!((rule, Does::of(&judged["FORWARD"].passing)), (rule, does), "{judged:?}");
        netns.output("iptables-nft", &["-F", "FORWARD"])?;
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
            netns.output("iptables-nft", &rule.split(' ').collect::<Vec<_>>())?;
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
        netns.output("iptables-nft", &rule.split(' ').collect::<Vec<_>>())?;
    }
    let mark = judged(&netns, &to_endpoint())?["FORWARD"].mark;
    assert_eq!(mark, Mark { value: 0x4000, known: 0x4001 });
    netns.output(
        "iptables-nft",
        &["-t", "mangle", "-A", "FORWARD", "-j", "CONNMARK", "--restore-mark", "--mask", "0xf000"],
    )?;
    let mark = judged(&netns, &to_endpoint())?["FORWARD"].mark;
    assert_eq!(mark, Mark { value: 0, known: 1 });
    Ok(())
}

#[test]
fn huge_tables_are_not_read_to_the_end() -> Result<()> {
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
