//! Many flows at once.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use nfnetlink::conntrack::{self, Tuple};
use shunt::flows::{Conntrack, Sweep, SweepReport};
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::{self, Flows, FrontendKey};
use shunt_testbed::Netns;

fn socket(text: &str) -> SocketAddr {
    text.parse().expect("address:port")
}

fn backend(text: &str) -> Backend {
    let address = socket(text);
    Backend { address: address.ip(), port: address.port() }
}

fn frontend(protocol: Protocol, text: &str) -> FrontendKey {
    let address = socket(text);
    FrontendKey::Address(address.ip(), protocol, address.port())
}

/// Where flows may stay, of a frontend that is to be searched.
fn serving(backends: &[&str]) -> plan::Flow {
    plan::Flow { serving: backends.iter().map(|text| backend(text)).collect(), search: true }
}

/// Sweeps one family in a namespace, over a new socket.
fn sweep(ns: &Netns, family: Family, sweep: &Sweep) -> Result<SweepReport> {
    ns.run(|| Ok(Conntrack::open()?.sweep(family, sweep, &mut |_| false)?))
}

/// Sends a datagram again if the kernel dropped it because it could not add an entry (EPERM): with this
/// many flows a chain of its hash table can be longer than a limit, which is random for each packet.
fn insist(send: impl Fn() -> std::io::Result<usize>) -> std::io::Result<usize> {
    const ATTEMPTS: usize = 100;
    let refused = |sent: &std::io::Result<usize>| {
        sent.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let mut attempts = std::iter::repeat_with(&send).take(ATTEMPTS);
    attempts.find(|sent| !refused(sent)).unwrap_or_else(send)
}

/// A node with many flows on its loopback device, half of them to an endpoint that is gone.
struct Crowd {
    ns: Netns,
    flows: usize,
}

impl Crowd {
    /// Serving, and gone.
    const ENDPOINTS: [[&'static str; 2]; 2] =
        [["127.0.0.2:9", "127.0.0.3:9"], ["[fd00:244::2]:9", "[fd00:244::3]:9"]];
    const FRONTENDS: [[&'static str; 2]; 2] =
        [["10.96.0.1:53", "10.96.0.2:54"], ["[fd00:96::1]:53", "[fd00:96::2]:54"]];
    const FIRST_PORT: u16 = 20_000;

    fn new() -> Result<Crowd> {
        let ns = Netns::new()?;
        ns.ip("link set lo up
            route add local 10.96.0.0/16 dev lo
            route add local fd00:96::/64 dev lo
            route add local fd00:244::/64 dev lo")?;
        // A slow machine takes longer to make them than they would live.
        ns.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout", "600")])?;
        Ok(Crowd { ns, flows: 0 })
    }

    /// Lets so many clients of each family send to both frontends.
    fn gather(&mut self, clients: u16) -> Result<()> {
        let (first, middle) = (Self::FIRST_PORT, Self::FIRST_PORT + clients / 2);
        let mut rules = String::from("flush ruleset\n");
        for (family, [serving, gone]) in ["ip", "ip6"].iter().zip(Self::ENDPOINTS) {
            rules.push_str(&format!(
                "table {family} hand {{
                    chain output {{
                        type nat hook output priority -100
                        udp dport 53-54 udp sport {first}-{} dnat to {serving}
                        udp dport 53-54 dnat to {gone}
                    }}
                }}\n",
                middle - 1
            ));
        }
        self.ns.nft(&rules)?;
        let addresses = [("127.0.0.1", Self::FRONTENDS[0]), ("::1", Self::FRONTENDS[1])];
        self.ns.run(|| {
            for (from, frontends) in addresses {
                let from: IpAddr = from.parse()?;
                let frontends = frontends.map(socket);
                for port in first..first + clients {
                    let client = UdpSocket::bind(SocketAddr::new(from, port))?;
                    for frontend in frontends {
                        insist(|| client.send_to(b"hello", frontend))?;
                    }
                }
            }
            Ok(())
        })?;
        self.flows = usize::from(clients) * 2;
        Ok(())
    }

    /// A sweep of both frontends of each family, and of so many others.
    fn sweep(others: u16) -> Sweep {
        let mut flows = Vec::new();
        for ([one, two], [serves, _]) in Self::FRONTENDS.into_iter().zip(Self::ENDPOINTS) {
            let serves = serving(&[serves]);
            flows.extend([one, two].map(|text| (frontend(Protocol::Udp, text), serves.clone())));
            let address = socket(one).ip();
            let other = |n| FrontendKey::Address(address, Protocol::Udp, 1000 + n);
            flows.extend((0..others).map(|n| (other(n), serving(&[]))));
        }
        Sweep::new(Flows::from_iter(flows), BTreeSet::new())
    }

    /// How many flows of both families there are, and how many of this one go to the endpoint that is
    /// gone.
    fn count(&self, family: Family) -> Result<(usize, usize)> {
        let [_, gone] = match family {
            Family::V4 => Self::ENDPOINTS[0],
            Family::V6 => Self::ENDPOINTS[1],
        };
        let all = self.ns.output("conntrack", &["--count"])?;
        let gone = socket(gone).ip().to_string();
        let to_gone = self.ns.output("conntrack", &["-L", "-p", "udp", "--reply-src", &gone])?;
        Ok((all.trim().parse()?, to_gone.lines().count()))
    }
}

#[test]
fn twenty_thousand_flows_are_sorted_out_whether_the_kernel_filters_or_not() -> Result<()> {
    let mut crowd = Crowd::new()?;
    // Two ports are asked for one by one, more of them in one dump.
    for (clients, others) in [(1_000, 0), (10_000, 50)] {
        crowd.gather(clients)?;
        let mut all = 2 * crowd.flows;
        for family in Family::ALL {
            assert_eq!(crowd.count(family)?, (all, crowd.flows / 2));
            let report = sweep(&crowd.ns, family, &Crowd::sweep(others))?;
            assert_eq!(report.listed, crowd.flows);
            assert_eq!(report.deleted, crowd.flows / 2);
            all -= report.deleted;
            assert_eq!(crowd.count(family)?, (all, 0));
        }
    }
    Ok(())
}

#[test]
fn flows_that_vanish_meanwhile_are_no_error() -> Result<()> {
    let mut crowd = Crowd::new()?;
    crowd.gather(4_000)?;
    let all = Crowd::sweep(0);
    let reports: Vec<SweepReport> = std::thread::scope(|scope| {
        let sweepers = [(); 4].map(|()| scope.spawn(|| sweep(&crowd.ns, Family::V4, &all)));
        sweepers.into_iter().map(|sweeper| sweeper.join().expect("no panic")).collect::<Result<_>>()
    })
    .context("one of four sweeps at a time")?;
    assert_eq!(reports.iter().map(|report| report.deleted).sum::<usize>(), crowd.flows / 2);
    let left = crowd.flows + crowd.flows / 2;
    assert_eq!(crowd.count(Family::V4)?, (left, 0));
    assert_eq!(crowd.count(Family::V6)?, (left, crowd.flows / 2));
    Ok(())
}

/// A process of the node answers on an address that has just become a frontend's. Its answer makes an
/// entry, for which the client's next packets are answers.
#[test]
fn late_answer_of_the_node_keeps_no_client() -> Result<()> {
    let ns = Netns::new()?;
    ns.ip("link set lo up\nroute add local 10.96.0.0/16 dev lo")?;
    ns.nft("table ip t { chain c { type filter hook output priority 0; ct state new accept; }; }")?;
    ns.run(|| {
        let (server, client) = (UdpSocket::bind("10.96.0.1:53")?, UdpSocket::bind("127.0.0.1:0")?);
        let tuple = |source, destination| Tuple { source, destination };
        let (to, from) = (server.local_addr()?, client.local_addr()?);
        client.send_to(b"question", to)?;
        server.recv_from(&mut [0; 8])?;
        let answer = || -> Result<usize> {
            let mut entries = conntrack::Conntrack::open()?;
            while entries.get(17, &tuple(from, to))?.is_some() {}
            Ok(server.send_to(b"answer", from)?)
        };
        let flows = [(frontend(Protocol::Udp, "10.96.0.1:53"), serving(&["10.244.0.1:53"]))];
        let stale = Sweep::new(flows.into_iter().collect::<Flows>(), BTreeSet::new());
        let report = std::thread::scope(|scope| {
            let answers = scope.spawn(answer);
            let report = Conntrack::open()?.sweep(Family::V4, &stale, &mut |_| false)?;
            answers.join().expect("no panic")?;
            Ok::<_, anyhow::Error>(report)
        })?;
        assert_eq!(report.deleted, 2);
        assert_eq!(conntrack::Conntrack::open()?.get(17, &tuple(to, from))?, None);
        Ok(())
    })
}
