//! Rulesets of programs that run on nodes, as they write them.

use anyhow::Result;
use nfnetlink::nft::{Interface, JudgedPacket, Mark, Passing};
use shunt_testbed::Netns;

use super::{TCP, judged, short, to_endpoint};

/// Loads rules in the format of iptables-save.
fn iptables(rules: &str) -> Result<Netns> {
    let netns = Netns::new()?;
    netns.output_with_input("iptables-nft-restore", &[], rules)?;
    Ok(netns)
}

fn through(input: &str, output: &str) -> JudgedPacket {
    JudgedPacket {
        input: Some(Interface::named(input)),
        output: Some(Interface::named(output)),
        ..to_endpoint()
    }
}

fn check(netns: &Netns, packet: &JudgedPacket, chain: &str, expected: &str) -> Result<()> {
    let judged = judged(netns, packet)?;
    assert_eq!(short(&judged[chain]), expected, "{packet:?}\n{judged:?}");
    Ok(())
}

#[test]
fn docker() -> Result<()> {
    let netns = iptables(
        "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 8080 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
",
    )?;
    check(&netns, &through("eth0", "cni0"), "FORWARD", "drops: policy drop in FORWARD")?;
    check(&netns, &through("docker0", "cni0"), "FORWARD", "passes")?;
    let docker = JudgedPacket { destination: [172, 17, 0, 2].into(), ..through("eth0", "docker0") };
    check(&netns, &docker, "FORWARD", "passes")?;
    let unknown = JudgedPacket { input: None, ..through("eth0", "cni0") };
    check(&netns, &unknown, "FORWARD", "may: policy drop in FORWARD")?;
    netns.output("iptables-nft", &["-I", "DOCKER-USER", "-i", "eth0", "-j", "ACCEPT"])?;
    check(&netns, &through("eth0", "cni0"), "FORWARD", "passes")
}

#[test]
fn kubernetes() -> Result<()> {
    let netns = iptables(
        "*filter
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"
        .replace("-m nfacct --nfacct-name ct_state_invalid_dropped_pkts ", "")
        .as_str(),
    )?;
    check(&netns, &to_endpoint(), "FORWARD", "passes")?;
    check(&netns, &to_endpoint(), "OUTPUT", "passes")?;
    let loopback = JudgedPacket { destination: [127, 0, 0, 1].into(), ..to_endpoint() };
    // The connection has been translated.
    check(&netns, &loopback, "OUTPUT", "passes")?;
    let direct = JudgedPacket { translated: false, ..loopback };
    check(&netns, &direct, "OUTPUT", "drops: drop in KUBE-FIREWALL")
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
fn kube_router() -> Result<()> {
    let netns = iptables(
        "*filter
:FORWARD ACCEPT [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-POD-FW-ABC - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-A FORWARD -m comment --comment \"kube-router netpol\" -j KUBE-ROUTER-FORWARD
-A KUBE-ROUTER-FORWARD -d 10.244.1.7/32 -m comment --comment \"to a pod\" -j KUBE-POD-FW-ABC
-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-POD-FW-ABC -m conntrack --ctstate INVALID -j DROP
-A KUBE-POD-FW-ABC -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-POD-FW-ABC -m addrtype --src-type LOCAL -d 10.244.1.7/32 -j ACCEPT
-A KUBE-POD-FW-ABC -s 10.1.0.0/16 -p tcp -m tcp --dport 8080 -j MARK --set-xmark 0x10000/0x10000
-A KUBE-POD-FW-ABC -m mark ! --mark 0x10000/0x10000 -m limit --limit 10/min -j NFLOG --nflog-group 100
-A KUBE-POD-FW-ABC -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-POD-FW-ABC -j MARK --set-xmark 0x0/0x10000
-A KUBE-POD-FW-ABC -j MARK --set-xmark 0x20000/0x20000
COMMIT
",
    )?;
    let denied = JudgedPacket { mark: 0.into(), ..to_endpoint() };
    // The source may be an address of the node.
    check(&netns, &denied, "FORWARD", "may: REJECT in KUBE-POD-FW-ABC")?;
    let Passing::May { why, .. } = &judged(&netns, &denied)?["FORWARD"].passing else {
        unreachable!()
    };
    assert!(why.contains("addrtype"), "{why}");
    let allowed = JudgedPacket { source: [10, 1, 0, 9].into(), ..denied };
    check(&netns, &allowed, "FORWARD", "passes")
}

#[test]
fn ufw() -> Result<()> {
    let netns = iptables(
        "*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-before-forward - [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
:ufw-user-input - [0:0]
:ufw-logging-deny - [0:0]
:ufw-reject-forward - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-user-input
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-logging-deny -m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN
-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny
-A ufw-not-local -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
-A ufw-user-input -p tcp -m multiport --dports 80,443 -j ACCEPT
COMMIT
",
    )?;
    check(&netns, &to_endpoint(), "FORWARD", "drops: policy drop in FORWARD")?;
    let local = |port| JudgedPacket {
        is_local: Some(true),
        ..JudgedPacket::new(TCP, [192, 0, 2, 9].into(), [192, 0, 2, 1].into(), port)
    };
    let local = |port| JudgedPacket { input: Some(Interface::named("eth0")), ..local(port) };
    check(&netns, &local(443), "INPUT", "passes")?;
    check(&netns, &local(30_000), "INPUT", "drops: policy drop in INPUT")?;
    let elsewhere = JudgedPacket { is_local: Some(false), ..local(443) };
    check(&netns, &elsewhere, "INPUT", "drops: drop in ufw-not-local")
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
    let trusted = JudgedPacket { input: Some(Interface::named("eth1")), ..direct.clone() };
    check(&netns, &trusted, "filter_FORWARD", "passes")?;
    let other = JudgedPacket { source: [192, 0, 2, 200].into(), ..trusted };
    check(&netns, &other, "filter_FORWARD", "drops: reject in filter_FWD_public")?;
    let unknown = JudgedPacket { input: None, ..direct };
    check(&netns, &unknown, "filter_FORWARD", "may: reject in filter_FWD_public")
}
