//! What a new flow of the node itself costs through one of many Services. All sizes are measured in
//! turns.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use shunt_core::model::{Change, Protocol};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{median, open, service, slice};
use super::table::Table;

const SIZES: [u32; 3] = [1, 1_000, 10_000];
const ENDPOINTS: u32 = 10;
const ROUNDS: usize = 9;
/// New flows per round: with all rounds and sizes they fit the table of connection tracking.
const FLOWS: u32 = 2_000;

pub(crate) fn measure(table: &mut Table, _: &[Size]) {
    let nodes: Vec<(u32, Netns)> = SIZES.iter().map(|size| (*size, node(*size))).collect();
    let direct = node(0);
    let mut without = Vec::new();
    let mut times: Vec<Vec<Duration>> = SIZES.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        without.push(new_flows(&direct, round, |n| Ipv4Addr::from(0x0af4_0000 + n % 10)));
        for ((size, node), times) in nodes.iter().zip(&mut times) {
            times.push(new_flows(node, round, |n| {
                // Scattered over all Services.
                Ipv4Addr::from(0x0a60_0000 + n.wrapping_mul(2_654_435_761) % size)
            }));
        }
    }
    let direct = median(without) / FLOWS;
    let mut one = None;
    for (services, times) in SIZES.iter().zip(times) {
        let ours = median(times) / FLOWS;
        let size = (*services, ENDPOINTS);
        let what = "a new UDP flow of the node";
        table.of(ROUNDS).times(what, size, ours, "without a Service", direct);
        let one = *one.get_or_insert(ours);
        table.of(ROUNDS).times(what, size, ours, "where it is the only Service", one);
    }
}

/// A namespace with that many Services, whose endpoints are behind a wire that swallows everything.
fn node(services: u32) -> Netns {
    let node = Netns::new().expect("a namespace");
    node.ip("link set lo up\n\
         link add wire type veth peer name end\n\
         link set wire up\nlink set end up\n\
         address add 192.0.2.10/24 dev wire\n\
         neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev wire nud permanent\n\
         route add default via 192.0.2.1\n")
        .expect("a wire");
    if services > 0 {
        let mut dataplane = open(&node);
        for n in 0..services {
            let mut service = service(n);
            service.ports[0].protocol = Protocol::Udp;
            let mut slice = slice(n, ENDPOINTS, 0);
            slice.ports[0].protocol = Protocol::Udp;
            dataplane.apply(Change::service(service));
            dataplane.apply(Change::slice(slice));
        }
        dataplane.apply(Change::Synced);
        dataplane.sync().expect("a commit");
    }
    node
}

/// How long it takes to open that many flows. Source ports are given out by us, so that every
/// datagram is a new flow.
fn new_flows(node: &Netns, round: usize, target: impl Fn(u32) -> Ipv4Addr + Sync) -> Duration {
    node.run(|| {
        let first_port = 10_000 + round as u32 * FLOWS;
        let sockets: Vec<UdpSocket> = (0..FLOWS)
            .map(|n| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, (first_port + n) as u16)))
            .collect::<Result<_, _>>()?;
        let started = Instant::now();
        for (n, socket) in (0..).zip(&sockets) {
            socket.send_to(b"x", SocketAddrV4::new(target(n), 80))?;
        }
        Ok(started.elapsed())
    })
    .expect("flows")
}
