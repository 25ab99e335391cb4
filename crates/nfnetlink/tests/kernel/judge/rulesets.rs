//! Rulesets of programs that run on nodes, as they write them.

use anyhow::Result;
use nfnetlink::nft::{JudgedPacket, Mark, Passing};
use shunt_testbed::Netns;

use super::{judged, short, to_endpoint};

/// Loads rules in the format of iptables-save.
fn iptables(rules: &str) -> Result<Netns> {
    let netns = Netns::new()?;
    netns.output_with_input("iptables-nft-restore", &[], rules)?;
    Ok(netns)
}

fn through(input: &str, output: &str) -> JudgedPacket {
    JudgedPacket { input: Some(input.to_owned()), output: Some(output.to_owned()), ..to_endpoint() }
}

fn check(netns: &Netns, packet: &JudgedPacket, chain: &str, expected: &str) -> Result<()> {
    let judged = judged(netns, packet)?;
    assert_eq!(short(&judged[chain]), expected, "{packet:?}\n{judged:?}");
    Ok(())
}

#[test]
fn calico() -> Result<()> {
    let netns = iptables(
        "*filter
:FORWARD ACCEPT [0:0]
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-wl-dispatch - [0:0]
:cali-fw-cali1234 - [0:0]
:cali-tw-cali1234 - [0:0]
:cali-tw-cali5678 - [0:0]
:cali-from-hep-forward - [0:0]
:cali-cidr-block - [0:0]
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -m comment --comment \"cali:mp77cMpurHhyjLrM\" -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -m mark --mark 0x0/0x10000 -j cali-from-hep-forward
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch
-A cali-FORWARD -j cali-cidr-block
-A cali-from-wl-dispatch -i cali1234 -g cali-fw-cali1234
-A cali-from-wl-dispatch -m comment --comment \"Unknown interface\" -j DROP
-A cali-to-wl-dispatch -o cali1234 -g cali-tw-cali1234
-A cali-to-wl-dispatch -o cali5678 -g cali-tw-cali5678
-A cali-to-wl-dispatch -m comment --comment \"Unknown interface\" -j DROP
-A cali-fw-cali1234 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fw-cali1234 -m conntrack --ctstate INVALID -j DROP
-A cali-fw-cali1234 -j MARK --set-xmark 0x0/0x30000
-A cali-fw-cali1234 -p udp -m multiport --dports 4789 -j DROP
-A cali-fw-cali1234 -j MARK --set-xmark 0x10000/0x10000
-A cali-fw-cali1234 -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-fw-cali1234 -j DROP
-A cali-tw-cali1234 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-cali1234 -j MARK --set-xmark 0x0/0x30000
-A cali-tw-cali1234 -p tcp -m multiport --dports 8080,8443 -j MARK --set-xmark 0x10000/0x10000
-A cali-tw-cali1234 -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-cali1234 -m comment --comment \"Drop if no profiles matched\" -j DROP
-A cali-tw-cali5678 -j MARK --set-xmark 0x0/0x30000
-A cali-tw-cali5678 -m limit --limit 5/s -j MARK --set-xmark 0x10000/0x10000
-A cali-tw-cali5678 -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-cali5678 -j DROP
COMMIT
",
    )?;
    check(&netns, &through("eth0", "cali1234"), "FORWARD", "passes")?;
    check(&netns, &through("cali1234", "eth0"), "FORWARD", "passes")?;
    let closed = JudgedPacket { port: 9090, ..through("eth0", "cali1234") };
    check(&netns, &closed, "FORWARD", "drops: drop in cali-tw-cali1234")?;
    let stranger = through("eth0", "cali9999");
    check(&netns, &stranger, "FORWARD", "drops: drop in cali-to-wl-dispatch")?;
    let open = through("eth0", "cali5678");
    check(&netns, &open, "FORWARD", "may: drop in cali-tw-cali5678")?;
    let Passing::May { why, .. } = &judged(&netns, &open)?["FORWARD"].passing else {
        unreachable!()
    };
    assert!(why.contains("limit"), "{why}");
    check(&netns, &through("eth0", "eth1"), "FORWARD", "passes")?;
    let mark = judged(&netns, &through("eth0", "cali1234"))?["FORWARD"].mark;
    assert_eq!(mark, Mark { value: 0x10000, known: 0xf0000 });
    Ok(())
}

#[test]
fn firewalld() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table inet firewalld {
            set trusted { type ipv4_addr; flags interval; elements = { 192.0.2.0/25 }; }
            chain filter_FORWARD {
                type filter hook forward priority filter + 10; policy accept;
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24 } reject with icmpv6 addr-unreachable
                jump filter_FORWARD_ZONES
                reject with icmpx admin-prohibited
            }
            chain filter_FORWARD_ZONES {
                iifname \"eth0\" oifname \"eth0\" goto filter_FWD_internal
                iifname \"eth0\" goto filter_FWD_public
                ip saddr @trusted goto filter_FWD_internal
                goto filter_FWD_public
            }
            chain filter_FWD_internal { accept; }
            chain filter_FWD_public {
                jump filter_FWD_public_allow
                reject with icmpx admin-prohibited
            }
            chain filter_FWD_public_allow {
                tcp dport . ip daddr vmap { 8443 . 10.244.1.7 : accept }
                tcp dport { 80, 443 } ct state { new, untracked } accept
            }
        }",
    )?;
    check(&netns, &to_endpoint(), "filter_FORWARD", "passes")?;
    let direct = JudgedPacket { translated: false, ..to_endpoint() };
    check(&netns, &direct, "filter_FORWARD", "drops: reject in filter_FWD_public")?;
    let allowed = JudgedPacket { port: 8443, ..direct.clone() };
    check(&netns, &allowed, "filter_FORWARD", "passes")?;
    let trusted = JudgedPacket { input: Some("eth1".to_owned()), ..direct.clone() };
    check(&netns, &trusted, "filter_FORWARD", "passes")?;
    let other = JudgedPacket { source: [192, 0, 2, 200].into(), ..trusted };
    check(&netns, &other, "filter_FORWARD", "drops: reject in filter_FWD_public")?;
    let unknown = JudgedPacket { input: None, ..direct };
    check(&netns, &unknown, "filter_FORWARD", "may: reject in filter_FWD_public")
}
