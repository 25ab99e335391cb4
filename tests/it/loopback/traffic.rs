//! What passes through the proxy: data, its end, resets, many connections at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use shunt_testbed::{Agent, Outcome};

use super::{BOTH, PATIENCE, PODS, V4, pair, raw_server, raw_service};
use crate::world::{World, allow_files};

/// The size of a transfer in each direction.
const BULK: usize = 16 << 20;
/// The number of connections at a time, and the files of the agent for each.
const TEN_THOUSAND: u64 = 10_000;
const FILES: u64 = 3;
/// The maximum of the agent's memory for a connection without data, in bytes.
const MOST_PER_CONNECTION: u64 = 8 << 10;

/// A server of the test behind the proxy.
struct Raw {
    world: World,
    server: TcpListener,
    agent: Agent,
}

impl Raw {
    fn new() -> Result<Raw> {
        let world = World::new()?;
        let server = raw_server(&world.lab.pod1)?;
        world.manifests.write("raw.yaml", raw_service(&world.lab.pod1))?;
        let agent = world.agent(BOTH)?.start()?;
        Ok(Raw { world, server, agent })
    }

    fn pair(&self) -> Result<(TcpStream, TcpStream)> {
        pair(&self.world, &self.server)
    }
}

/// Bytes that repeat after a prime number, so that a lost or doubled piece shows.
fn pattern(seed: u8) -> Vec<u8> {
    (0..BULK).map(|n| seed.wrapping_add((n % 251) as u8)).collect()
}

fn send_all(mut to: &TcpStream, bytes: &[u8]) -> Result<()> {
    to.write_all(bytes)?;
    Ok(to.shutdown(Shutdown::Write)?)
}

fn receive_all(mut from: &TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn bulk_data_arrives_unchanged_in_both_directions_at_once() -> Result<()> {
    let raw = Raw::new()?;
    let (client, endpoint) = raw.pair()?;
    let (up, down) = (pattern(1), pattern(2));
    thread::scope(|scope| -> Result<()> {
        let senders = [(&client, &up), (&endpoint, &down)]
            .map(|(to, bytes)| scope.spawn(move || send_all(to, bytes)));
        let receivers = [(&endpoint, &up), (&client, &down)]
            .map(|(from, bytes)| scope.spawn(move || Ok(receive_all(from)? == *bytes)));
        for sender in senders {
            sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??;
        }
        for receiver in receivers {
            let is_same: Result<bool> =
                receiver.join().map_err(|_| anyhow::anyhow!("a receiver panicked"))?;
            ensure!(is_same?, "the content differs");
        }
        Ok(())
    })
}

#[test]
fn each_direction_ends_by_itself() -> Result<()> {
    let raw = Raw::new()?;
    let (mut client, mut endpoint) = raw.pair()?;
    client.write_all(b"question")?;
    client.shutdown(Shutdown::Write)?;
    assert_eq!(receive_all(&endpoint)?, b"question");
    endpoint.write_all(b"answer")?;
    drop(endpoint);
    assert_eq!(receive_all(&client)?, b"answer");

    let (mut client, mut endpoint) = raw.pair()?;
    endpoint.write_all(b"greeting")?;
    endpoint.shutdown(Shutdown::Write)?;
    assert_eq!(receive_all(&client)?, b"greeting");
    client.write_all(b"reply")?;
    drop(client);
    assert_eq!(receive_all(&endpoint)?, b"reply");
    raw.agent.wait_for_sample("shunt_loopback_connections_open", &[], |it| it == 0.0).map(drop)
}

#[test]
fn reset_is_passed_on() -> Result<()> {
    let raw = Raw::new()?;
    for is_client in [true, false] {
        let (client, endpoint) = raw.pair()?;
        let (first, mut other) = if is_client { (client, endpoint) } else { (endpoint, client) };
        setsockopt(&first, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        drop(first);
        let error = other.read(&mut [0]).err().context("no error")?;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    raw.agent.wait_for_sample("shunt_loopback_connections_open", &[], |it| it == 0.0).map(drop)
}

#[test]
fn client_that_does_not_read_delays_no_other() -> Result<()> {
    let raw = Raw::new()?;
    let (mut stalled, mut endpoint) = raw.pair()?;
    // Until all buffers on the way are full.
    endpoint.set_nonblocking(true)?;
    let piece = vec![7; 64 << 10];
    let mut sent = 0;
    let mut full = 0;
    while full < 20 {
        match endpoint.write(&piece) {
            Ok(count) => (sent, full) = (sent + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) => return Err(error.into()),
        }
    }
    for _ in 0..10 {
        let (mut client, mut endpoint) = raw.pair()?;
        client.write_all(b"ping")?;
        let mut bytes = [0; 4];
        endpoint.read_exact(&mut bytes)?;
        assert_eq!(&bytes, b"ping");
    }
    endpoint.set_nonblocking(false)?;
    endpoint.shutdown(Shutdown::Write)?;
    let mut received = Vec::new();
    stalled.read_to_end(&mut received)?;
    assert_eq!(received.len(), sent);
    Ok(())
}

/// Of 240 files, each connection needs two, and a quarter is for other uses.
#[test]
fn connections_above_the_maximum_are_reset() -> Result<()> {
    const MOST: usize = 90;
    let world = World::with_web()?;
    let limited = ["sh", "-c", "ulimit -n 240 && exec \"$@\"", "sh"];
    let agent = world.agent(BOTH)?.wrapper(&limited).start()?;
    let node = world.lab.from(&world.lab.node);
    node.tcp(V4).eventually().reaches(&PODS);
    agent.wait_for_sample("shunt_loopback_connections_open", &[], |it| it == 0.0)?;
    let mut connections = Vec::new();
    for _ in 0..MOST {
        connections.push(node.connect(V4)?);
    }
    let tally = node.tcp(V4).tally(4, PATIENCE)?;
    ensure!(tally.counts.iter().all(|(outcome, _)| *outcome == Outcome::Reset), "{tally}");
    agent.wait_for_log(&["WARN", "too many connections", "maximum=90"])?;
    assert_eq!(agent.log().matches("too many connections").count(), 1);
    let (total, too_many) = ("shunt_loopback_connections_total", [("result", "too-many")]);
    assert_eq!(agent.scrape()?.value(total, &too_many), Some(4.0));
    for connection in &mut connections {
        connection.server(PATIENCE)?;
    }
    drop(connections);
    node.tcp(V4).eventually().reaches(&PODS);
    agent.stop()
}

/// As many as the system permits: the agent uses two files for each, and the test has both ends.
#[test]
fn ten_thousand_connections_at_once() -> Result<()> {
    let files = allow_files(TEN_THOUSAND * FILES)?;
    let many = (files / FILES).min(TEN_THOUSAND);
    let raw = Raw::new()?;
    // The first connection waits for the listener.
    let mut pairs = vec![raw.pair()?];
    let before = raw.agent.resident()?;
    while pairs.len() < usize::try_from(many)? {
        pairs.push(raw.pair().with_context(|| format!("after {} connections", pairs.len()))?);
    }
    raw.agent.wait_for_sample("shunt_loopback_connections_open", &[], |it| it == many as f64)?;
    let grown = raw.agent.resident()?.saturating_sub(before);
    ensure!(grown < many * MOST_PER_CONNECTION, "{many} connections: {grown} bytes");
    for (n, (client, endpoint)) in pairs.iter_mut().enumerate() {
        let (question, answer) = (n.to_be_bytes(), (!n).to_be_bytes());
        for (from, to, bytes) in [(&*client, &*endpoint, question), (&*endpoint, &*client, answer)]
        {
            let (mut from, mut to, mut read) = (from, to, [0; 8]);
            from.write_all(&bytes)?;
            to.read_exact(&mut read)?;
            ensure!(read == bytes, "connection {n}");
        }
    }
    let status = crate::world::status_json(&raw.world.lab.node)?;
    assert_eq!(status["loopback"]["connections"], many);
    drop(pairs);
    raw.agent.wait_for_sample("shunt_loopback_connections_open", &[], |it| it == 0.0)?;
    let labels = [("result", "forwarded")];
    let forwarded = raw.agent.scrape()?.value("shunt_loopback_connections_total", &labels);
    assert_eq!(forwarded, Some(many as f64));
    raw.agent.stop()
}
