//! Random rules and random packets: the judgements against what the kernel does.
//!
//! `SHUNT_SEED` makes a run another one, and `SHUNT_SOAK=n` one that is n times as long.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::{AttachedChain, Interface, JudgedPacket, Judgement, Mark, Passing, Socket};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use shunt_testbed::{Netns, Random, patience, seed};

use super::UDP;

/// The number of rulesets of each program, and of packets for each.
const RULESETS: usize = 40;
const PACKETS: usize = 24;

const PORTS: [u16; 4] = [53, 80, 443, 8080];
/// The port of the datagram that every chain accepts, and that follows each other one.
const SENTINEL: u16 = 9;

/// Clients, servers and Service addresses of both families. The clients are behind different
/// interfaces of the router.
const CLIENTS: [[&str; 2]; 2] = [["10.1.0.2", "10.2.0.2"], ["fd01::2", "fd02::2"]];
const SERVERS: [[&str; 2]; 2] = [["10.9.0.2", "10.9.0.3"], ["fd09::2", "fd09::3"]];
const SERVICES: [&str; 2] = ["10.96.0.1", "fd96::1"];
/// The port of the Service, and that of its endpoint, the first server.
const SERVICE_PORTS: (u16, u16) = (80, 8080);

/// A router with two clients and one server, which has two addresses.
struct World {
    clients: [Netns; 2],
    router: Netns,
    /// The sockets of the server, by port.
    server: BTreeMap<u16, UdpSocket>,
    /// The source port of the latest datagram. Each connection has its own.
    source_port: u16,
}

impl World {
    fn new() -> Result<World> {
        let (clients, router, server) =
            ([Netns::new()?, Netns::new()?], Netns::new()?, Netns::new()?);
        let forwarding = [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];
        router.sysctl(&forwarding)?;
        for (number, client) in (1..).zip(&clients) {
            router.ip(&format!(
                "link add in{number} type veth peer name eth0 netns {}
                addr add 10.{number}.0.1/24 dev in{number}
                addr add fd0{number}::1/64 dev in{number} nodad
                link set in{number} up",
                client.path().display()
            ))?;
            client.ip(&format!(
                "link set eth0 up
                addr add 10.{number}.0.2/24 dev eth0
                addr add fd0{number}::2/64 dev eth0 nodad
                route add default via 10.{number}.0.1
                route add default via fd0{number}::1"
            ))?;
        }
        router.ip(&format!(
            "link add out0 type veth peer name eth0 netns {}
            addr add 10.9.0.1/24 dev out0
            addr add fd09::1/64 dev out0 nodad
            link set out0 up",
            server.path().display()
        ))?;
        server.ip("link set eth0 up
            addr add 10.9.0.2/24 dev eth0
            addr add 10.9.0.3/24 dev eth0
            addr add fd09::2/64 dev eth0 nodad
            addr add fd09::3/64 dev eth0 nodad
            route add default via 10.9.0.1
            route add default via fd09::1")?;
        let ports = PORTS.into_iter().chain([SENTINEL]);
        let server: BTreeMap<_, _> = server
            .run(|| ports.map(|port| Ok((port, UdpSocket::bind(("::", port))?))).collect())?;
        server[&SENTINEL].set_read_timeout(Some(Duration::from_secs(20)))?;
        let world = World { clients, router, server, source_port: 1024 };
        // Later datagrams do not wait for a link or a neighbour.
        for (addresses, client) in SERVERS.iter().flat_map(|it| [(it, 0), (it, 1)]) {
            for address in addresses {
                world.greet(client, SocketAddr::new(address.parse()?, SENTINEL))?;
            }
        }
        Ok(world)
    }

    /// Sends until something arrives: a new link drops what comes before its carrier.
    fn greet(&self, client: usize, to: SocketAddr) -> Result<()> {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = self.clients[client].run(|| Ok(UdpSocket::bind(any)?))?;
        let greeting = format!("{client} greets {to}");
        let server = &self.server[&SENTINEL];
        server.set_nonblocking(true)?;
        let deadline = Instant::now() + patience(Duration::from_secs(20));
        loop {
            // A route may be missing as long as its link has no carrier.
            let sent = socket.send_to(greeting.as_bytes(), to);
            // Those of other greetings may still come.
            let mut buffer = [0; 64];
            if server.recv(&mut buffer).is_ok_and(|length| buffer[..length] == *greeting.as_bytes())
            {
                break;
            }
            ensure!(Instant::now() < deadline, "no greeting at {to}: {sent:?}");
            thread::sleep(Duration::from_millis(1));
        }
        server.set_nonblocking(false)?;
        Ok(())
    }

    /// Sends a datagram and returns whether it comes to the server.
    fn is_delivered(&mut self, client: usize, from: SocketAddr, to: SocketAddr) -> Result<bool> {
        let family = usize::from(to.is_ipv6());
        let sentinel: IpAddr = SERVERS[family][0].parse()?;
        self.clients[client].run(|| {
            // The kernel forwards packets of one processor in their order.
            let mut processor = CpuSet::new();
            let all = sched_getaffinity(Pid::from_raw(0))?;
            let first = (0..CpuSet::count()).find(|number| all.is_set(*number) == Ok(true));
            processor.set(first.context("no processor")?)?;
            sched_setaffinity(Pid::from_raw(0), &processor)?;
            let socket = UdpSocket::bind(from)?;
            socket.send_to(&from.port().to_be_bytes(), to)?;
            let sentinel_from = UdpSocket::bind((from.ip(), 0))?;
            sentinel_from.send_to(&from.port().to_be_bytes(), (sentinel, SENTINEL))?;
            Ok(())
        })?;
        let mut buffer = [0; 16];
        // Greetings may still come.
        let sentinel = from.port().to_be_bytes();
        while {
            let length =
                self.server[&SENTINEL].recv(&mut buffer).context("the sentinel was lost")?;
            buffer[..length] != sentinel
        } {}
        let mut is_delivered = false;
        for port in PORTS {
            let socket = &self.server[&port];
            socket.set_nonblocking(true)?;
            while let Ok(length) = socket.recv(&mut buffer) {
                let sent = &from.port().to_be_bytes()[..];
                ensure!(&buffer[..length] == sent, "a datagram came late");
                is_delivered = true;
            }
        }
        Ok(is_delivered)
    }
}

/// Fills the places of a rule with random values.
fn fill(random: &mut Random, template: &str) -> String {
    let mut rule = template.to_owned();
    for (place, values) in [
        ("CLIENT", &["10.1.0.2", "10.2.0.2", "10.1.0.0/24", "10.0.0.0/8", "192.0.2.0/24"][..]),
        ("SERVER", &["10.9.0.2", "10.9.0.3", "10.9.0.0/24", "10.96.0.1", "192.0.2.1"]),
        ("CLIENT6", &["fd01::2", "fd02::2", "fd01::/64", "fd00::/8", "2001:db8::/32"]),
        ("SERVER6", &["fd09::2", "fd09::3", "fd09::/64", "fd96::1", "2001:db8::1"]),
        ("PORT", &["53", "80", "443", "8080"]),
        ("IN", &["in1", "in2", "out0"]),
        ("OUT", &["out0", "in1"]),
        ("MARK", &["0x0", "0x1", "0x2", "0x3", "0x10", "0x4000"]),
        ("STATE", &["new", "established", "invalid", "related", "new,established", "untracked"]),
        ("USER", &["u0", "u1", "u2"]),
    ] {
        let place = format!("<{place}>");
        while let Some(at) = rule.find(&place) {
            rule.replace_range(at..at + place.len(), values[random.below(values.len())]);
        }
    }
    rule
}

const NFT_MATCHES: [&str; 46] = [
    "",
    "meta l4proto udp",
    "@nh,0,4 6",
    "meta nfproto ipv6",
    "ip saddr <CLIENT>",
    "ip saddr != <CLIENT>",
    "ip daddr <SERVER>",
    "ip daddr != <SERVER>",
    "ip6 saddr <CLIENT6>",
    "ip6 daddr != <SERVER6>",
    "ip6 nexthdr udp",
    "udp dport <PORT>",
    "udp dport != <PORT>",
    "udp dport 80-1000",
    "udp dport != 80-1000",
    "udp dport < 443",
    "udp dport >= 443",
    "udp sport < 3000",
    "udp sport { 1-2000, 5000-6000, 50000-65535 }",
    "th dport { <PORT>, 8080 }",
    "ip daddr . udp dport { 10.9.0.3 . 80-1000, 10.9.0.2 . <PORT> }",
    "iifname . udp dport { in1 . 80, in2 . 443-8080 }",
    "ip saddr . ip daddr @pairs",
    "ip saddr @ranges",
    "udp dport @ports",
    "iifname <IN>",
    "iifname != <IN>",
    "iifname \"in*\"",
    "iifname { <IN>, lo }",
    "oifname <OUT>",
    "oifname != <OUT>",
    "meta mark <MARK>",
    "meta mark != <MARK>",
    "meta mark and 0x3 == 0x1",
    "meta mark < 0x10",
    "ct state <STATE>",
    "ct state != <STATE>",
    "ct status dnat",
    "ct status & dnat == 0",
    "ct direction original",
    "ct original ip daddr <SERVER>",
    "ct original ip6 daddr <SERVER6>",
    "ct reply ip saddr <SERVER>",
    "ct mark <MARK>",
    "numgen random mod 2 == 0",
    "@th,16,16 <PORT>",
];

const NFT_STATEMENTS: [&str; 18] = [
    "accept",
    "accept",
    "drop",
    "drop",
    "reject",
    "return",
    "continue",
    "jump <USER>",
    "jump <USER>",
    "goto <USER>",
    "counter",
    "meta mark set <MARK>",
    "numgen random mod 2 == 0 meta mark set <MARK>",
    "meta mark set meta mark or 0x1",
    "meta mark set meta mark and 0xfffffffe",
    "ct mark set <MARK>",
    "meta mark set ct mark",
    "th dport vmap { 53 : drop, <LOW>-1000 : jump <USER>, 8080 : accept }",
];

/// Returns a random statement for a chain. It leads only to later chains: `u0` is the first.
fn statement(random: &mut Random, level: usize, statements: &[&str]) -> String {
    loop {
        let statement = random.one_of(statements).to_string();
        let statement = statement.replace("<LOW>", ["54", "80", "443"][random.below(3)]);
        if statement.contains("<USER>") {
            if level > 2 {
                continue;
            }
            let user = format!("u{}", level + random.below(3 - level));
            return fill(random, &statement.replace("<USER>", &user));
        }
        return fill(random, &statement);
    }
}

/// Writes random rules of nft into the tables of a router.
fn nft_ruleset(random: &mut Random) -> String {
    let rules = |random: &mut Random, count: usize, level: usize, name: &str| -> String {
        (0..count)
            .map(|_| {
                let mut rule = String::new();
                for _ in 0..1 + random.below(2) {
                    let part = *random.one_of(&NFT_MATCHES);
                    // nft refuses rules for two families.
                    let families = [["ip ", "ipv4"], ["ip6 ", "ipv6"]];
                    let has =
                        |text: &str, names: [&str; 2]| names.iter().any(|it| text.contains(it));
                    let both = format!("{rule}{part}");
                    if !families.iter().all(|names| has(&both, *names)) {
                        rule += &format!("{} ", fill(random, part));
                    }
                }
                if name == "early" && random.below(12) == 0 {
                    return format!("{rule} notrack\n");
                }
                let statement = statement(random, level, &NFT_STATEMENTS);
                // The kernel refuses to reject at the postrouting hook.
                let can_reject = ["first", "second"].contains(&name);
                let statement =
                    statement.replace("reject", if can_reject { "reject" } else { "drop" });
                format!("{rule} {statement}\n")
            })
            .collect()
    };
    let mut table = String::from(
        "set pairs { type ipv4_addr . ipv4_addr; flags interval;
            elements = { 10.1.0.0/24 . 10.9.0.2, 10.2.0.2 . 10.9.0.0/24 }; }
        set ranges { type ipv4_addr; flags interval; elements = { 10.1.0.0/16, 10.2.0.9-10.3.0.0 }; }
        set ports { type inet_service; elements = { 53, 443 }; }\n",
    );
    for user in (0..3).rev() {
        let count = 1 + random.below(4);
        table += &format!("chain u{user} {{\n{}}}\n", rules(random, count, user + 1, ""));
    }
    for (name, hook) in [
        ("early", "prerouting priority -300"),
        ("mangle", "prerouting priority -150"),
        ("first", "forward priority 0"),
        ("second", "forward priority 10"),
        ("last", "postrouting priority 50"),
    ] {
        // Most packets come to the chains at the forward hook.
        let count = if hook.starts_with("forward") { 2 + random.below(5) } else { random.below(2) };
        let policy = if random.below(8) == 0 { "drop" } else { "accept" };
        table += &format!(
            "chain {name} {{
            type filter hook {hook}; policy {policy};
            udp dport {SENTINEL} accept\nmeta l4proto {{ icmp, icmpv6 }} accept
            {}}}\n",
            rules(random, count, 0, name),
        );
    }
    format!("table inet chance {{\n{table}}}\n")
}

const IPTABLES_MATCHES: [&str; 32] = [
    "",
    "-p udp",
    "-p tcp",
    "! -p udp",
    "-s <CLIENT>",
    "! -s <CLIENT>",
    "-d <SERVER>",
    "! -d <SERVER>",
    "-i <IN>",
    "! -i <IN>",
    "-i in+",
    "-p udp --dport <PORT>",
    "-p udp ! --dport <PORT>",
    "-p udp --dport 80:1000",
    "-p udp ! --dport 80:1000",
    "-p udp --sport 1024:2000",
    "-p udp -m multiport --dports <PORT>,400:500",
    "-p udp -m multiport ! --dports <PORT>,8080",
    "-p udp -m multiport --ports <PORT>,1:2000",
    "-m conntrack --ctstate NEW",
    "-m conntrack --ctstate INVALID",
    "-m conntrack ! --ctstate RELATED,ESTABLISHED",
    "-m conntrack --ctstate DNAT",
    "-m conntrack --ctstate ESTABLISHED,DNAT",
    "-m conntrack --ctorigdst 10.96.0.0/16",
    "-m conntrack --ctorigdstport <PORT> -p udp",
    "-m conntrack --ctreplsrc 10.9.0.2 --ctdir ORIGINAL",
    "-m mark --mark <MARK>/0x3",
    "-m mark ! --mark <MARK>",
    "-m addrtype --dst-type LOCAL",
    "-m iprange --src-range 10.1.0.0-10.1.0.9",
    "-m statistic --mode random --probability 0.5",
];

const IPTABLES_TARGETS: [&str; 16] = [
    "-j ACCEPT",
    "-j ACCEPT",
    "-j DROP",
    "-j DROP",
    "-j REJECT",
    "-j RETURN",
    "-j <USER>",
    "-j <USER>",
    "-g <USER>",
    "-m comment --comment nothing",
    "-j LOG",
    "-j MARK --set-mark <MARK>",
    "-m statistic --mode random --probability 0.5 -j MARK --set-mark <MARK>",
    "-j MARK --set-xmark <MARK>/0x1",
    "-j CONNMARK --save-mark",
    "-j CONNMARK --restore-mark",
];

/// Writes random rules in the format of iptables-save.
fn iptables_ruleset(random: &mut Random) -> String {
    let mut rules = String::from("*filter\n");
    let policy = random.one_of(&["ACCEPT", "ACCEPT", "DROP"]);
    rules += &format!(":FORWARD {policy} [0:0]\n:u0 - [0:0]\n:u1 - [0:0]\n:u2 - [0:0]\n");
    rules +=
        &format!("-A FORWARD -p udp --dport {SENTINEL} -j ACCEPT\n-A FORWARD -p icmp -j ACCEPT\n");
    for (level, chain) in [(0, "FORWARD"), (1, "u0"), (2, "u1"), (3, "u2")] {
        for _ in 0..2 + random.below(5) {
            let found = *random.one_of(&IPTABLES_MATCHES);
            let found = fill(random, found);
            rules +=
                &format!("-A {chain} {found} {}\n", statement(random, level, &IPTABLES_TARGETS));
        }
    }
    rules + "COMMIT\n"
}

/// A datagram: from which client, and to which address and port.
struct Datagram {
    client: usize,
    from: SocketAddr,
    to: SocketAddr,
    is_to_service: bool,
}

impl Datagram {
    fn random(random: &mut Random, source_port: u16, is_v4: bool) -> Result<Datagram> {
        let family = if is_v4 { 0 } else { random.below(2) };
        let client = random.below(2);
        let from = SocketAddr::new(CLIENTS[family][client].parse()?, source_port);
        let is_to_service = random.below(3) == 0;
        let to = if is_to_service {
            SocketAddr::new(SERVICES[family].parse()?, SERVICE_PORTS.0)
        } else {
            SocketAddr::new(random.one_of(&SERVERS[family]).parse()?, *random.one_of(&PORTS))
        };
        Ok(Datagram { client, from, to, is_to_service })
    }

    /// Returns the packet as a chain sees it. Some properties are hidden at random.
    fn seen_by(
        &self,
        chain: &AttachedChain,
        random: &mut Random,
        mark: Mark,
    ) -> Result<JudgedPacket> {
        let is_before = chain.hook_name() == "prerouting";
        let mut packet = JudgedPacket::new(UDP, self.from.ip(), self.to.ip(), self.to.port());
        if self.is_to_service && !is_before {
            packet.destination = SERVERS[usize::from(self.to.is_ipv6())][0].parse()?;
            packet.port = SERVICE_PORTS.1;
            packet.translated = true;
        }
        let mut known = || random.below(5) != 0;
        packet.source_port = known().then_some(self.from.port());
        packet.input = known().then(|| Interface::named(format!("in{}", self.client + 1)));
        packet.output = known().then(|| Interface::named("out0"));
        packet.is_local = known().then_some(false);
        packet.mark = if known() { mark } else { Mark::UNKNOWN };
        Ok(packet)
    }
}

/// The judgements of all chains on a datagram.
#[derive(Debug)]
struct Judged {
    chains: Vec<(String, Judgement)>,
    /// Whether the datagram is delivered, if that is certain.
    is_delivered: Option<bool>,
}

fn judge(
    world: &World,
    chains: &[AttachedChain],
    datagram: &Datagram,
    random: &mut Random,
) -> Result<Judged> {
    let mut judged = Judged { chains: Vec::new(), is_delivered: Some(true) };
    let mut mark = Mark::from(0);
    for chain in chains {
        let packet = datagram.seen_by(chain, random, mark)?;
        let judgement = world.router.run(|| Ok(Socket::open()?.judge(chain, &packet)?))?;
        mark = judgement.mark;
        match judgement.passing {
            Passing::Drops(_) => judged.is_delivered = Some(false),
            Passing::May { .. } => judged.is_delivered = None,
            Passing::Passes => {}
        }
        // Without translation or tracking, the other chains see another packet.
        let is_over = judged.is_delivered == Some(false) || judgement.translation.is_some();
        if judgement.translation.is_some() && judged.is_delivered == Some(true) {
            judged.is_delivered = None;
        }
        judged.chains.push((chain.chain.clone(), judgement));
        if is_over {
            break;
        }
    }
    Ok(judged)
}

/// Sends random datagrams through random rules, and compares.
fn compare(is_iptables: bool) -> Result<()> {
    let soak: Option<usize> = std::env::var("SHUNT_SOAK").ok().and_then(|times| times.parse().ok());
    let seed = seed(soak.is_none().then_some(0))?;
    let mut random = Random::new(seed);
    let mut world = World::new()?;
    let (service, endpoint) = (SERVICE_PORTS.0, SERVICE_PORTS.1);
    let nat = |family: &str, name: usize, to: &str| {
        format!(
            "chain nat{name} {{ type nat hook prerouting priority -100;
            {family} daddr {} udp dport {service} dnat {family} to {to}:{endpoint}; }}\n",
            SERVICES[name]
        )
    };
    world.router.nft(&format!(
        "table inet shunt {{ {} {} }}",
        nat("ip", 0, SERVERS[0][0]),
        nat("ip6", 1, &format!("[{}]", SERVERS[1][0]))
    ))?;
    let mut counts = [0; 3];
    for _ in 0..RULESETS * soak.unwrap_or(1) {
        let ruleset =
            if is_iptables { iptables_ruleset(&mut random) } else { nft_ruleset(&mut random) };
        let loaded = if is_iptables {
            world.router.output_with_input("iptables-nft-restore", &[], &ruleset).map(drop)
        } else {
            world.router.nft(&ruleset)
        };
        loaded.with_context(|| format!("SHUNT_SEED={seed}:\n{ruleset}"))?;
        let mut chains = world.router.run(|| Ok(Socket::open()?.base_chains()?))?;
        // Chains of one hook are in the order of the kernel; prerouting is 0, postrouting 4.
        chains.retain(|chain| {
            chain.table != "shunt" && !["input", "output"].contains(&chain.hook_name())
        });
        for _ in 0..PACKETS {
            world.source_port = world.source_port.checked_add(1).unwrap_or(1025);
            let datagram = Datagram::random(&mut random, world.source_port, is_iptables)?;
            let judged = judge(&world, &chains, &datagram, &mut random)?;
            let is_delivered = world.is_delivered(datagram.client, datagram.from, datagram.to)?;
            let Datagram { from, to, .. } = datagram;
            ensure!(
                judged.is_delivered.is_none_or(|it| it == is_delivered),
                "SHUNT_SEED={seed}: delivered: {is_delivered}, from {from} to {to}\n{judged:#?}\n{ruleset}"
            );
            counts[judged.is_delivered.map_or(2, usize::from)] += 1;
        }
        world.router.nft(if is_iptables {
            "delete table ip filter"
        } else {
            "delete table inet chance"
        })?;
    }
    ensure!(
        counts.iter().all(|count| *count > 10),
        "SHUNT_SEED={seed}: dropped, delivered, open: {counts:?}"
    );
    Ok(())
}

#[test]
fn judgements_on_rules_of_nft_agree_with_packets() -> Result<()> {
    compare(false)
}

#[test]
fn judgements_on_rules_of_iptables_agree_with_packets() -> Result<()> {
    compare(true)
}
