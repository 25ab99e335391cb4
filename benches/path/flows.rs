//! Client and server: sockets, and how long they wait.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use shunt_testbed::Netns;

/// The port of the server: not one of those of [`crate::beside`].
pub(super) const TARGET: u16 = 8090;
/// A packet without an answer by then is lost.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const PROGRAMMED_TIMEOUT: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);
/// The processor that handles all packets.
const CPU: usize = 0;
/// Bytes of a bulk transfer.
const VOLUME: usize = 64 << 20;
/// Bytes of a write and of a read of a bulk transfer: as iperf3 has it.
const CHUNK: usize = 128 << 10;
const TRIPS: usize = 200;
/// Round trips that are not counted: they fill the caches.
const WARM_UP: usize = 20;

/// Answers on the port of the target until this process ends: every datagram, on the first connection
/// every byte, on the second one each bulk transfer. Later connections are closed at once.
pub(super) fn serve(host: &Netns) -> Result<()> {
    let (udp, tcp) = host.run(|| {
        let any = (Ipv4Addr::UNSPECIFIED, TARGET);
        Ok((UdpSocket::bind(any)?, TcpListener::bind(any)?))
    })?;
    spawn("udp", move || {
        let mut buffer = [0; 64];
        loop {
            let (length, from) = udp.recv_from(&mut buffer)?;
            udp.send_to(&buffer[..length], from)?;
        }
    })?;
    spawn("tcp", move || {
        let (mut first, _) = tcp.accept()?;
        first.set_nodelay(true)?;
        spawn("established", move || {
            let mut buffer = [0; 1];
            loop {
                first.read_exact(&mut buffer)?;
                first.write_all(&buffer)?;
            }
        })?;
        let (mut second, _) = tcp.accept()?;
        spawn("bulk", move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                let mut left = VOLUME;
                while left > 0 {
                    match second.read(&mut buffer)? {
                        0 => return Ok(()),
                        length => left -= length,
                    }
                }
                second.write_all(b"x")?;
            }
        })?;
        loop {
            drop(tcp.accept()?);
        }
    })
}

/// Starts a thread on the one processor.
fn spawn(name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name.into()).spawn(move || pin().and_then(|()| work()))?;
    Ok(())
}

/// Asks until there is an answer: the rules are in the kernel by then.
pub(super) fn wait_until_answered(host: &Netns, to: SocketAddrV4) -> Result<()> {
    host.run(|| {
        let started = Instant::now();
        while started.elapsed() < PROGRAMMED_TIMEOUT {
            // A new flow every time: an entry of connection tracking would outlive new rules.
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(POLL))?;
            socket.connect(to)?;
            if socket.send(b"x").and_then(|_| socket.recv(&mut [0; 1])).is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("no answer from {to} within {PROGRAMMED_TIMEOUT:?}")
    })
}

/// Keeps this thread on the one processor.
pub(super) fn pin() -> Result<()> {
    let mut set = CpuSet::new();
    set.set(CPU)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// From sending the first datagram of a flow to its answer.
pub(super) fn first_answer(port: u16, to: SocketAddrV4) -> Result<Duration> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.connect(to)?;
    let started = Instant::now();
    socket.send(b"x")?;
    let answered = socket.recv(&mut [0; 1]);
    let took = started.elapsed();
    answered.with_context(|| format!("no answer from {to} to port {port}"))?;
    Ok(took)
}

/// How long `connect()` takes: from the SYN to the SYN-ACK. The connection is reset afterwards.
pub(super) fn connected(port: u16, to: SocketAddrV4) -> Result<Duration> {
    let socket: OwnedFd =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    bind(socket.as_raw_fd(), &SockaddrIn::from(from))?;
    reset_when_closed(&socket)?;
    let to = SockaddrIn::from(to);
    let started = Instant::now();
    connect(socket.as_raw_fd(), &to)?;
    Ok(started.elapsed())
}

/// Opens a connection to each address, one after the other, and waits until the server closes it.
/// Returns connections a second.
pub(super) fn rate(to: &[SocketAddrV4]) -> Result<f64> {
    let started = Instant::now();
    for address in to {
        let mut stream = TcpStream::connect(address)?;
        stream.read_exact(&mut [0]).err().context("the server sent a byte")?;
        reset_when_closed(&stream)?;
    }
    Ok(to.len() as f64 / started.elapsed().as_secs_f64())
}

/// Sends a bulk transfer until the server has all of it. Returns gigabits a second.
pub(super) fn bulk(stream: &mut TcpStream) -> Result<f64> {
    let chunk = vec![0; CHUNK];
    let started = Instant::now();
    for _ in 0..VOLUME / CHUNK {
        stream.write_all(&chunk)?;
    }
    stream.read_exact(&mut [0])?;
    Ok(VOLUME as f64 * 8.0 / 1e9 / started.elapsed().as_secs_f64())
}

/// Times round trips.
pub(super) fn round_trips(mut trip: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    (0..WARM_UP).try_for_each(|_| trip())?;
    let timed = |_| {
        let started = Instant::now();
        trip()?;
        Ok(started.elapsed())
    };
    (0..TRIPS).map(timed).collect()
}

/// Neither ports nor the table of connection tracking run out then.
fn reset_when_closed(socket: &impl std::os::fd::AsFd) -> Result<()> {
    Ok(setsockopt(socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?)
}
