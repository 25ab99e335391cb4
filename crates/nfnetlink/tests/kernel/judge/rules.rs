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

/// Rules that match the packet, that do not, and of which that is not known.
type Matches<'a> = [&'a [&'a str]; 3];

/// Each rule with what it does.
fn rows<'a>(matches: &Matches<'a>) -> Vec<(&'a str, Does)> {
    let all = matches.iter().zip([Match, Miss, Unknown]);
    all.flat_map(|(rules, does)| rules.iter().map(move |rule| (*rule, does))).collect()
}

/// Judges each match of nft as a rule that drops, in a table with these sets.
fn check_matches(
    sets: &str,
    hook: &str,
    packet: &JudgedPacket,
    matches: &Matches<'_>,
) -> Result<()> {
    let (netns, rows) = (Netns::new()?, rows(matches));
    let mut table = sets.to_owned();
    for (number, (rule, _)) in rows.iter().enumerate() {
        table += &format!("\nchain c{number} {{ type filter hook {hook}; {rule} drop; }}");
    }
    netns.nft(&format!("table inet t {{ {table}\n}}"))?;
    let judged = judged(&netns, packet)?;
    for (number, row) in rows.iter().enumerate() {
        let found = Does::of(&judged[&format!("c{number}")].passing);
        assert_eq!((row.0, found), *row);
    }
    Ok(())
}

#[test]
fn headers_are_matched() -> Result<()> {
    let matches: Matches<'_> = [
        &[
            "ip saddr 192.0.2.9",
            "ip saddr 192.0.2.0/24",
            "ip saddr 192.0.2.0/23",
            "ip daddr 10.244.1.7",
            "ip daddr >= 10.244.0.0 ip daddr <= 10.244.1.7",
            "ip daddr > 10.244.1.6",
            "ip daddr 10.244.1.1-10.244.1.9",
            "ip protocol tcp",
            "ip version 4",
            "meta nfproto ipv4",
            "meta protocol ip",
            "meta l4proto tcp",
            "meta l4proto { udp, tcp }",
            "tcp dport 8080",
            "tcp dport 8000-8100",
            "th dport 8080",
            "tcp sport 0-65535",
            "tcp flags syn / fin,syn,rst,ack",
            "@th,16,16 8080",
            "@nh,128,32 & 0xff000000 == 0x0a000000",
        ],
        &[
            "ip saddr != 192.0.2.9",
            "ip daddr 10.96.0.1",
            "ip daddr 10.0.0.0/8 ip saddr 10.0.0.0/8",
            "ip daddr < 10.244.1.7",
            "ip daddr != 10.244.1.1-10.244.1.9",
            "ip protocol udp",
            "ip frag-off & 0x1fff != 0",
            "ip6 daddr fd00::7",
            "meta nfproto ipv6",
            "meta l4proto udp",
            "tcp dport 80",
            "tcp dport != 8000-8100",
            "udp dport 8080",
            "tcp flags & (fin|syn) == (fin|syn)",
            "tcp flags ack",
        ],
        &["ip ttl 64", "tcp sport 1024-65535", "tcp flags cwr"],
    ];
    check_matches("", "forward priority 0", &to_endpoint(), &matches)
}

#[test]
fn properties_of_the_packet_are_matched() -> Result<()> {
    let matches: Matches<'_> = [
        &[
            "iifname \"eth0\"",
            "iifname \"et*\"",
            "iifname . oifname { \"eth0\" . \"cni0\" }",
            "iifname { \"eth*\", \"lo\" }",
            "meta mark 0x10",
            "meta mark & 0x10 == 0x10",
            "meta mark 5-20",
            "meta mark set 0x4000 meta mark 0x4000",
            "meta mark set meta mark or 0x4000 meta mark 0x4010",
            "meta mark set meta mark << 4 meta mark 0x100",
            "ct mark set 7 ct mark 7",
            "meta priority set 1:1",
            "meta nftrace set 1 counter log prefix \"x\"",
            "fib daddr type unicast",
        ],
        &[
            "iifname \"eth1\"",
            "iifname \"cali*\"",
            "oifname != \"cni0\"",
            "iif lo",
            "meta mark and 0xff0 != 0x10",
            "meta mark < 16",
            "fib daddr type local",
        ],
        &[
            "oif lo",
            "iifgroup 0",
            "meta iifkind \"veth\"",
            "meta mark set ct mark meta mark 0",
            "ct mark 0",
            "meta skuid 0",
            "limit rate 1/second",
            "numgen random mod 2 == 0",
            "fib daddr . iif type local",
            "fib saddr type local",
            "rt classid 1",
        ],
    ];
    let input = Interface { name: "eth0".to_owned(), index: Some(2) };
    let packet = JudgedPacket { mark: 0x10.into(), input: Some(input), ..to_endpoint() };
    check_matches("", "forward priority 0", &packet, &matches)
}

#[test]
fn unknown_properties_decide_nothing_that_depends_on_them() -> Result<()> {
    let packet = JudgedPacket { input: None, output: None, is_local: None, ..to_endpoint() };
    let matches: Matches<'_> = [
        &["meta mark and 0 == 0"],
        &[
            "iifname \"eth0\" tcp dport 80",
            "meta mark set meta mark and 0xff00 meta mark and 0xff == 1",
        ],
        &[
            "iifname \"eth0\"",
            "oifname != \"cni0\"",
            "iif lo",
            "meta mark 1",
            "fib daddr type local",
            "iifname \"eth0\" accept; iifname \"eth0\" counter",
        ],
    ];
    check_matches("", "forward priority 0", &packet, &matches)?;
    // A packet has no input interface at the output hook, and no output interface at prerouting.
    let matches: Matches<'_> = [&["iif 0"], &["iifname \"eth0\""], &[]];
    check_matches("", "output priority 0", &packet, &matches)?;
    let matches: Matches<'_> = [&["oifname != \"eth0\""], &["oifname \"eth0\""], &[]];
    check_matches("", "prerouting priority 0", &packet, &matches)
}

#[test]
fn connections_are_matched() -> Result<()> {
    let matches: Matches<'_> = [
        &[
            "ct state new",
            "ct state { new, untracked }",
            "ct status dnat",
            "ct direction original",
            "ct original ip daddr 10.96.0.1",
            "ct original ip saddr 192.0.2.0/24",
            "meta l4proto tcp ct original proto-dst 80",
            "ct reply ip saddr 10.244.1.7",
            "ct reply ip daddr 192.0.2.9",
            "meta l4proto tcp ct reply proto-src 8080",
            "ct l3proto ipv4",
            "ct protocol tcp",
            "notrack ct state new",
        ],
        &[
            "ct state invalid",
            "ct state established,related",
            "ct state != new",
            "ct status snat",
            "ct status assured",
            "ct direction reply",
            "ct original ip6 daddr fd00::1",
            "meta l4proto tcp ct original proto-dst 8080",
        ],
        &[
            "ct status dying",
            "meta l4proto tcp ct original proto-src 1024",
            "ct helper \"ftp\"",
            "ct zone 0",
        ],
    ];
    check_matches("", "forward priority 0", &to_endpoint(), &matches)?;
    let direct = JudgedPacket { translated: false, ..to_endpoint() };
    let matches: Matches<'_> = [&["ct status & dnat == 0"], &["ct status dnat"], &[]];
    check_matches("", "forward priority 0", &direct, &matches)?;
    // Connection tracking comes after this chain.
    let matches: Matches<'_> = [
        &["ct state invalid", "notrack ct state untracked"],
        &["ct state new", "ct status dnat", "ct mark 0"],
        &[],
    ];
    check_matches("", "prerouting priority -300", &direct, &matches)?;
    // A packet from the loopback interface is tracked already.
    let looped = JudgedPacket { input: Some(Interface::named("lo")), ..direct.clone() };
    check_matches("", "prerouting priority -300", &looped, &[&[], &[], &["ct state new"]])?;
    // The source may be translated at this point.
    let matches: Matches<'_> = [&[], &[], &["ct original ip saddr 192.0.2.9", "ct status snat"]];
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
            elements = { 10.243.0.0/16 : 7, 10.244.0.0/16 : 5, * : 6 }; }
        map verdicts { type inet_service : verdict; elements = { 8080 : continue, 80 : return }; }
        chain next {}";
    let matches: Matches<'_> = [
        &[
            "tcp dport @ports",
            "tcp dport { 80, 8000-9000 }",
            "tcp dport @high",
            "ip daddr @ranges",
            "ip daddr . tcp dport @pairs",
            "ip daddr . meta l4proto . th dport @pair_ranges",
            "ip saddr @with_timeout",
            "ip saddr != @empty",
            "ip saddr @everything",
            "meta mark set tcp dport map @marks meta mark 0x77",
            "meta mark set tcp dport map { 80 : 1, 8080 : 2 } meta mark 2",
            "meta mark set ip daddr map @mark_ranges meta mark 5",
            "meta mark set ip saddr map @mark_ranges meta mark 6",
            "tcp dport vmap @verdicts; tcp dport 8080",
            "tcp dport vmap { 1 : drop, 8080 : jump next }; counter",
            "tcp dport vmap { 1-7999 : accept, 8000-9000 : drop }; accept; counter",
            "tcp sport vmap { 1 : drop }; counter",
        ],
        &[
            "tcp dport != @ports",
            "tcp dport { 80, 443 }",
            "ip saddr @ranges",
            "ip saddr . tcp dport @pairs",
            "ip saddr . meta l4proto . th dport @pair_ranges",
            "ip daddr @limited",
            "ip saddr @empty",
            "tcp dport vmap { 1 : drop, 8080 : goto next }; counter",
            "tcp dport vmap { 1 : drop, 8080 : accept }; counter",
            "iifname vmap { \"eth*\" : accept }; counter",
            "ip saddr . tcp dport vmap { 192.0.2.9 . 8080 : accept }; counter",
        ],
        &[
            "tcp sport @ports",
            "ip daddr . tcp sport @pairs",
            "ip daddr . meta l4proto . th sport @pair_ranges",
            "ip saddr @seen",
            "ip saddr @limited",
            "update @seen { ip saddr }",
            "meta mark set tcp sport map { 80 : 1, 8080 : 2 } meta mark 2",
            "tcp sport vmap { 1 : accept, 2 : return }; counter",
        ],
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
    let matches: Matches<'_> = [
        &[
            "ip6 saddr 2001:db8::/32",
            "ip6 daddr fd00:10:244::7",
            "ip6 nexthdr udp",
            "udp dport 53 udp sport 40000",
            "ct original ip6 daddr fd00:10:96::1",
            "ip6 daddr { fd00:10:244::/48, fd01::/16 }",
            "meta nfproto ipv6",
        ],
        &[
            "ip6 daddr != fd00:10:244::/64",
            "ip6 nexthdr tcp",
            "ip daddr 10.0.0.1",
            "udp sport < 1024",
        ],
        &["exthdr frag exists"],
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
            chain snats { type nat hook postrouting priority 100; snat to 1.2.3.4; }
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
    assert_eq!(found("snats"), Some("snat"));
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
    let matches: Matches<'_> = [
        &[
            "-p tcp --dport 8080",
            "-p tcp --dport 8000:9000",
            "-p tcp --syn",
            "! -p udp",
            "-p tcp -m multiport --dports 80,8080",
            "-p tcp -m multiport --dports 80,8000:8100,9",
            "-p tcp -m multiport --ports 80,8080",
            "-s 192.0.2.0/24 -d 10.244.1.7",
            "-i eth0 -o cni0",
            "-m comment --comment kubernetes",
            "-m conntrack --ctstate NEW",
            "-m conntrack ! --ctstate RELATED,ESTABLISHED",
            "-m conntrack --ctstate RELATED,ESTABLISHED,DNAT",
            "-m conntrack --ctorigdst 10.96.0.0/16",
            "-m conntrack --ctorigdstport 80",
            "-m conntrack --ctreplsrc 10.244.1.7 --ctproto tcp",
            "-m conntrack --ctdir ORIGINAL",
            "-m state --state NEW",
            "-m mark --mark 0x4000/0x4000",
            "-m addrtype ! --dst-type LOCAL",
            "-m iprange --src-range 192.0.2.1-192.0.2.10",
            "-m tcp -p tcp --dport 8080 -m conntrack --ctstate NEW -m comment --comment x",
        ],
        &[
            "-p tcp ! --dport 8000:9000",
            "-p tcp ! --syn",
            "-p tcp --tcp-flags ALL NONE",
            "-p udp --dport 8080",
            "-p tcp -m multiport ! --dports 80,8000:8100",
            "-p tcp -m multiport --dports 80,443",
            "! -s 192.0.2.0/24",
            "-i eth+ -o cali+",
            "! -i eth0",
            "-f",
            "-m conntrack --ctstate INVALID",
            "-m conntrack --ctstate RELATED,ESTABLISHED",
            "-m conntrack --ctstate SNAT",
            "-m conntrack --ctstatus ASSURED",
            "-m conntrack --ctorigdst 10.97.0.0/16",
            "-m conntrack --ctorigdstport 81:90",
            "-m conntrack --ctdir REPLY",
            "-m state --state ESTABLISHED",
            "-m mark ! --mark 0x4000/0x4000",
            "-m mark --mark 0x8000/0x8000",
            "-m addrtype --dst-type LOCAL",
            "-m iprange ! --src-range 192.0.2.1-192.0.2.10",
            "-m iprange --dst-range 10.244.1.8-10.244.1.10",
        ],
        &[
            "-p tcp --sport 1:5",
            "-p tcp --tcp-option 5",
            "-p tcp -m multiport --sports 80,443",
            "-m conntrack --ctorigsrcport 80",
            "-m conntrack --ctexpire 10",
            "-m connmark --mark 1",
            "-m addrtype --src-type LOCAL",
            "-m addrtype --dst-type LOCAL --limit-iface-out",
            "-m limit --limit 1/s",
            "-m statistic --mode random --probability 0.5",
            "-m physdev --physdev-is-bridged",
        ],
    ];
    for (rule, does) in rows(&matches) {
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
