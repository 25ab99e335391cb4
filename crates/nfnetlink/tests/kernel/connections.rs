//! Connections that the kernel tracks.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context as _, Result};
use nfnetlink::Family;
use nfnetlink::conntrack::{Connection, Conntrack, Destination, Tuple};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockname, socket,
};
use shunt_testbed::Netns;

use crate::wait_until_local;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Makes a node that translates port 53 to 5353 of its own addresses, and whose packets to
/// 192.0.2.0/24 and 2001:db8::/64 get lost.
fn node() -> Result<Netns> {
    let netns = Netns::new()?;
    netns.ip("link set lo up
        link add nowhere type veth peer name nobody
        link set nowhere arp off
        link set nobody up
        link set nowhere up
        addr add 192.0.2.1/24 dev nowhere
        addr add 2001:db8::1/64 dev nowhere nodad")?;
    wait_until_local(&netns, &["2001:db8::1", "::1"])?;
    netns.nft(
        "table inet t {
            chain output {
                type nat hook output priority -100;
                udp dport 53 dnat ip to 127.0.0.1:5353
                udp dport 53 dnat ip6 to [::1]:5353
            }
            chain zones {
                type filter hook output priority -300
                udp dport 82 ct zone set 5
                udp dport 83 ct original zone set 6
            }
        }",
    )?;
    Ok(netns)
}

/// Sends a datagram from a new socket, and returns the socket with its address.
fn send(from: &str, to: &str) -> Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind(from)?;
    socket.send_to(b"question", to)?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn get(protocol: u8, source: SocketAddr, destination: &str) -> Result<Option<Connection>> {
    let original = Tuple { source, destination: destination.parse()? };
    Ok(Conntrack::open()?.get(protocol, &original)?)
}

#[test]
fn connection_is_found_by_its_first_packet() -> Result<()> {
    node()?.run(|| {
        for (client, frontend, backend) in [
            ("127.0.0.1:0", "127.0.0.2:53", "127.0.0.1:5353"),
            ("[::1]:0", "[2001:db8::1]:53", "[::1]:5353"),
        ] {
            let server = UdpSocket::bind(backend)?;
            let (_socket, client) = send(client, frontend)?;
            let one_way = get(UDP, client, frontend)?.context("no entry")?;
            assert_eq!(one_way.original.destination.to_string(), frontend);
            assert_eq!(one_way.reply.source.to_string(), backend);
            assert_eq!(one_way.zone, 0);
            assert!(!one_way.answered, "{one_way:?}");

            let (_, peer) = server.recv_from(&mut [0; 64])?;
            server.send_to(b"answer", peer)?;
            let answered = get(UDP, client, frontend)?.context("no entry")?;
            assert!(answered.answered, "{answered:?}");
        }
        Ok(())
    })
}

#[test]
fn unanswered_syn_is_seen_as_such() -> Result<()> {
    node()?.run(|| {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let client = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        use std::os::fd::AsRawFd as _;
        let to: std::net::SocketAddrV4 = "192.0.2.77:80".parse()?;
        let connected = connect(client.as_raw_fd(), &SockaddrStorage::from(to));
        assert_eq!(connected, Err(Errno::EINPROGRESS));
        let own: SockaddrStorage = getsockname(client.as_raw_fd())?;
        let own = SocketAddr::V4((*own.as_sockaddr_in().context("no address")?).into());
        let entry = get(TCP, own, "192.0.2.77:80")?.context("no entry")?;
        assert!(!entry.answered);
        assert_eq!(get(TCP, own, "192.0.2.77:81")?, None);
        Ok(())
    })
}

#[test]
fn connections_to_a_destination_are_listed() -> Result<()> {
    node()?.run(|| {
        let mut sockets = Vec::new();
        for (from, to) in [
            ("192.0.2.1:0", "192.0.2.77:80"),
            ("192.0.2.1:0", "192.0.2.77:80"),
            ("192.0.2.1:0", "192.0.2.77:81"),
            ("192.0.2.1:0", "192.0.2.78:80"),
            ("192.0.2.1:0", "192.0.2.78:82"),
            ("192.0.2.1:0", "192.0.2.78:83"),
            ("[2001:db8::1]:0", "[2001:db8::77]:80"),
            ("[2001:db8::1]:0", "[2001:db8::78]:80"),
        ] {
            sockets.push(send(from, to)?);
        }
        let mut conntrack = Conntrack::open()?;
        let mut count = |protocol, address: &str, port| -> Result<usize> {
            let address = address.parse()?;
            let to = Destination { protocol, address: Some(address), port };
            let mut count = 0;
            conntrack.connections_to(Family::of(address), &to, |_| count += 1)?;
            Ok(count)
        };
        assert_eq!(count(UDP, "192.0.2.77", Some(80))?, 2);
        assert_eq!(count(UDP, "192.0.2.77", None)?, 3);
        assert_eq!(count(TCP, "192.0.2.77", Some(80))?, 0);
        assert_eq!(count(UDP, "2001:db8::77", Some(80))?, 1);
        let mut zones = Vec::new();
        let all = Destination { protocol: UDP, address: None, port: None };
        conntrack.connections_to(Family::Ip, &all, |connection| zones.push(connection.zone))?;
        zones.sort_unstable();
        assert_eq!(zones, [0, 0, 0, 0, 5, 6]);
        Ok(())
    })
}

#[test]
fn usage_counts_this_namespace_only() -> Result<()> {
    let (node, other) = (node()?, node()?);
    let _sockets = node.run(|| {
        let ports = 0..5;
        ports
            .map(|port| send("192.0.2.1:0", &format!("192.0.2.77:{port}8")))
            .collect::<Result<Vec<_>>>()
    })?;
    let usage = |netns: &Netns| netns.run(|| Ok(Conntrack::open()?.usage()?));
    let (here, there) = (usage(&node)?, usage(&other)?);
    assert_eq!((here.entries, there.entries), (5, 0));
    let file = "/proc/sys/net/netfilter/nf_conntrack_max";
    let limit = node.run(|| Ok(std::fs::read_to_string(file)?))?;
    assert_eq!(here.limit, Some(limit.trim().parse()?));
    Ok(())
}

const ALL_UDP: Destination = Destination { protocol: UDP, address: None, port: None };

#[test]
fn entry_that_the_kernel_keeps_does_not_end_a_deletion() -> Result<()> {
    node()?.run(|| {
        let ports = 1000..1300;
        let sent = ports.map(|port| send("192.0.2.1:0", &format!("192.0.2.77:{port}")));
        let _sockets = sent.collect::<Result<Vec<_>>>()?;
        let mut conntrack = Conntrack::open()?;
        let mut entries = Vec::new();
        conntrack.connections_to(Family::Ip, &ALL_UDP, |entry| entries.push(entry))?;
        assert_eq!(entries.len(), 300);
        // The kernel refuses a tuple of both families.
        entries[0].reply.destination.set_ip("2001:db8::1".parse()?);
        let mut refused = Vec::new();
        let deleted = conntrack.delete(&entries, |errno| refused.push(errno))?;
        assert_eq!((deleted, &refused[..]), (299, &[Errno::EINVAL][..]));
        let mut left = 0;
        conntrack.connections_to(Family::Ip, &ALL_UDP, |_| left += 1)?;
        assert_eq!(left, 1);
        Ok(())
    })
}
