//! Random rules and random packets: the judgements against what the kernel does.
//!
//! `SHUNT_SEED` makes a run another one, and `SHUNT_SOAK=n` one that is n times as long.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::{AttachedChain, JudgedPacket, Judgement, Mark, Passing, Socket};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use shunt_testbed::{Random, Topology, seed};

use super::{UDP, section};

/// The number of rulesets of each program, and of packets for each.
const RULESETS: usize = 40;
const PACKETS: usize = 24;

const PORTS: [u16; 4] = [53, 80, 443, 8080];
/// The port of the datagram that every chain accepts, and that follows each other one.
const SENTINEL: u16 = 9;

/// Clients, servers and Service addresses of both families. The clients are behind different
/// interfaces of the node.
const CLIENTS: [[&str; 2]; 2] =
    [["192.0.2.100", "10.244.0.12"], ["2001:db8:2::100", "fd00:244::12"]];
const SERVERS: [[&str; 2]; 2] = [["10.244.0.11", "10.244.0.13"], ["fd00:244::11", "fd00:244::13"]];
const SERVICES: [&str; 2] = ["10.96.0.1", "fd00:96::1"];
/// The port of the Service, and that of its endpoint, the first server.
const SERVICE_PORTS: (u16, u16) = (80, 8080);

/// The testbed, in which pod-1 is the server and has a second address; the client and pod-2 send.
struct World {
    lab: Topology,
    /// The sockets of the server, by port.
    server: BTreeMap<u16, UdpSocket>,
    /// The source port of the latest datagram. Each connection has its own.
    source_port: u16,
}

impl World {
    fn new() -> Result<World> {
        let lab = Topology::new()?;
        lab.pod1.ip("addr add 10.244.0.13/32 dev eth0
            addr add fd00:244::13/128 dev eth0 nodad")?;
        lab.node.ip("route add 10.244.0.13/32 via 10.244.0.11 dev veth-pod-1 onlink
            route add fd00:244::13/128 via fd00:244::11 dev veth-pod-1")?;
        lab.client.ip("route add 10.244.0.0/16 via 192.0.2.10
            route add fd00:244::/48 via 2001:db8:2::10")?;
        let ports = PORTS.into_iter().chain([SENTINEL]);
        let bind = |port| Ok((port, UdpSocket::bind(("::", port))?));
        let server: BTreeMap<_, _> = lab.pod1.run(|| ports.map(bind).collect())?;
        server[&SENTINEL].set_read_timeout(Some(Duration::from_secs(20)))?;
        for port in PORTS {
            server[&port].set_nonblocking(true)?;
        }
        Ok(World { lab, server, source_port: 1024 })
    }

    /// Sends a datagram and returns whether it comes to the server.
    fn is_delivered(&mut self, client: usize, from: SocketAddr, to: SocketAddr) -> Result<bool> {
        let family = usize::from(to.is_ipv6());
        let sentinel: IpAddr = SERVERS[family][0].parse()?;
        [&self.lab.client, &self.lab.pod2][client].run(|| {
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
        let sent = &from.port().to_be_bytes()[..];
        let length = self.server[&SENTINEL].recv(&mut buffer).context("the sentinel was lost")?;
        ensure!(&buffer[..length] == sent, "a sentinel came late");
        let mut is_delivered = false;
        for port in PORTS {
            while let Ok(length) = self.server[&port].recv(&mut buffer) {
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
    for line in templates("places") {
        let (place, values) = line.split_once(' ').unwrap_or((line, ""));
        let values: Vec<&str> = values.split(' ').collect();
        while let Some(at) = rule.find(place) {
            rule.replace_range(at..at + place.len(), random.one_of::<&str>(&values));
        }
    }
    rule
}

fn templates(name: &str) -> Vec<&'static str> {
    section(include_str!("templates.txt"), name).collect()
}

/// Returns a random statement for a chain. It leads only to later chains: `u0` is the first.
fn statement(random: &mut Random, level: usize, statements: &[&str]) -> String {
    loop {
        let statement = random.one_of(statements).to_string();
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
    let (matches, statements) = (templates("nft matches"), templates("nft statements"));
    let rules = |random: &mut Random, count: usize, level: usize, name: &str| -> String {
        (0..count)
            .map(|_| {
                let mut rule = String::new();
                for _ in 0..1 + random.below(2) {
                    let part = *random.one_of(&matches);
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
                let statement = statement(random, level, &statements);
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
            elements = { 192.0.2.0/24 . 10.244.0.11, 10.244.0.12 . 10.244.0.0/24 }; }
        set ranges { type ipv4_addr; flags interval; elements = { 192.0.2.0/24, 10.244.0.9-10.244.0.11 }; }
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

/// Writes random rules in the format of iptables-save.
fn iptables_ruleset(random: &mut Random) -> String {
    let (matches, targets) = (templates("iptables matches"), templates("iptables targets"));
    let mut rules = String::from("*filter\n");
    let policy = random.one_of(&["ACCEPT", "ACCEPT", "DROP"]);
    rules += &format!(":FORWARD {policy} [0:0]\n:u0 - [0:0]\n:u1 - [0:0]\n:u2 - [0:0]\n");
    rules +=
        &format!("-A FORWARD -p udp --dport {SENTINEL} -j ACCEPT\n-A FORWARD -p icmp -j ACCEPT\n");
    for (level, chain) in [(0, "FORWARD"), (1, "u0"), (2, "u1"), (3, "u2")] {
        for _ in 0..2 + random.below(5) {
            let found = *random.one_of(&matches);
            let found = fill(random, found);
            rules += &format!("-A {chain} {found} {}\n", statement(random, level, &targets));
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
        packet.input = known().then(|| ["eth0", "veth-pod-2"][self.client].to_owned());
        packet.output = known().then(|| "veth-pod-1".to_owned());
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
        let judgement = world.lab.node.run(|| Ok(Socket::open()?.judge(chain, &packet)?))?;
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
    world.lab.node.nft(&format!(
        "table inet shunt {{ {} {} }}",
        nat("ip", 0, SERVERS[0][0]),
        nat("ip6", 1, &format!("[{}]", SERVERS[1][0]))
    ))?;
    let mut counts = [0; 3];
    for _ in 0..RULESETS * soak.unwrap_or(1) {
        let ruleset =
            if is_iptables { iptables_ruleset(&mut random) } else { nft_ruleset(&mut random) };
        let loaded = if is_iptables {
            world.lab.node.output_with_input("iptables-nft-restore", &[], &ruleset).map(drop)
        } else {
            world.lab.node.nft(&ruleset)
        };
        loaded.with_context(|| format!("SHUNT_SEED={seed}:\n{ruleset}"))?;
        let mut chains = world.lab.node.run(|| Ok(Socket::open()?.base_chains()?))?;
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
        world.lab.node.nft(if is_iptables {
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
