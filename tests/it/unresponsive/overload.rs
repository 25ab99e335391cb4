//! Healthy backends under more connections than they can take. `SHUNT_SOAK=n` takes n times as long.
//!
//! A port that takes no new connection for ten seconds counts as unresponsive, even if its server
//! works. Here, each takes one every seven seconds at least, and most take one every second.

#![allow(clippy::print_stdout, reason = "the progress is what a long run is watched by")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, socket,
};
use shunt_testbed::{Host, Random};

use super::scene::{FOUND, Scene, endpoints, kill};
use crate::world::{World, http_service, http_slices};

const VIPS: [&str; 2] = ["10.96.0.20:80", "[fd00:96::20]:80"];
/// The duration of the overload. `SHUNT_SOAK` multiplies it.
const USUAL: Duration = Duration::from_secs(20);
/// Between two looks at the agent.
const LOOK: Duration = Duration::from_secs(1);
/// Clients on each of four hosts.
const CLIENTS: u64 = 24;
/// Milliseconds.
const LONGEST_STALL: u64 = 6_000;

/// A server with a short queue that takes fewer connections than come.
struct Slow {
    name: &'static str,
    backlog: i32,
    /// Each accepts a connection, works on it, answers it and closes it.
    workers: u64,
    /// Milliseconds of work for a connection.
    work: (usize, usize),
    /// After each so many connections, a worker stalls, as for garbage collection.
    stalls: Option<usize>,
}

const SLOW: [Slow; 4] = [
    // On this node: it accepts slowly.
    Slow { name: "pod-30", backlog: 1, workers: 1, work: (300, 1_200), stalls: None },
    // On this node: it stops for seconds now and then.
    Slow { name: "pod-31", backlog: 4, workers: 1, work: (100, 800), stalls: Some(20) },
    // On the other node: likewise.
    Slow { name: "pod-32", backlog: 1, workers: 1, work: (300, 1_000), stalls: Some(15) },
    // On the other node: it answers after seconds.
    Slow { name: "pod-33", backlog: 2, workers: 3, work: (2_000, 4_000), stalls: None },
];

#[test]
fn slow_backends_under_overload_are_never_ejected() -> Result<()> {
    let soak = std::env::var("SHUNT_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1_u32);
    let world = World::new()?;
    let mut slow = Vec::new();
    for (n, server) in (30..).zip(SLOW) {
        let near = n < 32;
        let (node, net) = if near { (&world.lab.node, 0) } else { (&world.lab.node2, 1) };
        let v6 = if near { format!("fd00:244::{n}") } else { format!("fd00:244:1::{n}") };
        slow.push((world.lab.add_pod(node, server.name, [10, 244, net, n], &v6)?, server));
    }
    let lab = &world.lab;
    // One fast server on each node: probes can always be trusted.
    let pods: Vec<&Host> =
        [&lab.pod1, &lab.pod3].into_iter().chain(slow.iter().map(|(pod, _)| pod)).collect();
    let service = http_service("http", &["10.96.0.20", "fd00:96::20"]);
    let slices = http_slices("http", &pods);
    world.manifests.write("http.yaml", format!("{service}{slices}"))?;
    let mut listeners = Vec::new();
    for (pod, server) in &slow {
        for endpoint in endpoints(pod) {
            let listener = pod.run(|| server.listen(endpoint))?;
            listeners.push((listener, server, Mutex::new(Pauses::new(endpoint))));
        }
    }
    let scene = Scene::start(world, "on")?;
    let overload = &Overload {
        scene: &scene,
        slow: &slow,
        pauses: listeners.iter().map(|(_, _, pauses)| pauses).collect(),
        is_over: AtomicBool::new(false),
        connected: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        for (listener, server, pauses) in &listeners {
            for seed in 0..server.workers {
                let random = Random::new(seed);
                scope.spawn(move || overload.work(listener, server, pauses, random));
            }
        }
        let lab = &scene.world.lab;
        let mut clients = Vec::new();
        for (number, host) in (0..).zip([&lab.client, &lab.pod1, &lab.pod2, &lab.node]) {
            for client in 0..CLIENTS {
                let random = Random::new(number * CLIENTS + client);
                clients.push(scope.spawn(move || overload.connect(host, random)));
            }
        }
        let result = overload.watch(USUAL * soak);
        overload.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result
    })
}

impl Slow {
    /// Opens a queue for this address only: connections to the other one must not fill it.
    fn listen(&self, endpoint: SocketAddr) -> Result<TcpListener> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let address = SockaddrStorage::from(endpoint);
        let family = if endpoint.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let listener = socket(family, SockType::Stream, flags, None)?;
        bind(listener.as_raw_fd(), &address)?;
        listen(&listener, Backlog::new(self.backlog)?)?;
        Ok(listener.into())
    }
}

/// When a server accepted connections: with each, there is room for another SYN.
#[derive(Debug)]
struct Pauses {
    #[allow(dead_code, reason = "failures show it")]
    endpoint: SocketAddr,
    last: Instant,
    longest: Duration,
}

impl Pauses {
    fn new(endpoint: SocketAddr) -> Self {
        Self { endpoint, last: Instant::now(), longest: Duration::ZERO }
    }

    fn accepted(&mut self) {
        self.longest = self.longest.max(self.last.elapsed());
        self.last = Instant::now();
    }
}

struct Overload<'a> {
    scene: &'a Scene,
    slow: &'a [(Host, Slow)],
    pauses: Vec<&'a Mutex<Pauses>>,
    is_over: AtomicBool,
    /// How many connections came about.
    connected: AtomicUsize,
}

impl Overload<'_> {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Sleeps, unless the test ends meanwhile.
    fn sleep(&self, milliseconds: u64) {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        while !self.is_over() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// A worker of a slow server.
    fn work(
        &self,
        listener: &TcpListener,
        server: &Slow,
        pauses: &Mutex<Pauses>,
        mut random: Random,
    ) {
        let (shortest, longest) = server.work;
        let mut count = 0;
        while !self.is_over() {
            match listener.accept() {
                Ok((mut connection, _)) => {
                    count += 1;
                    pauses.lock().unwrap_or_else(PoisonError::into_inner).accepted();
                    self.sleep((shortest + random.below(longest - shortest)) as u64);
                    let _ = writeln!(connection, "{}", server.name);
                    if server.stalls.is_some_and(|often| count % often == 0) {
                        self.sleep(LONGEST_STALL);
                    }
                }
                // None waits.
                Err(_) => self.sleep(10),
            }
        }
    }

    /// A client that connects again and again, whatever becomes of it.
    fn connect(&self, host: &Host, mut random: Random) -> Result<()> {
        let vips: Vec<SocketAddr> = VIPS.iter().map(|vip| vip.parse()).collect::<Result<_, _>>()?;
        host.run(|| {
            while !self.is_over() {
                let patience = Duration::from_millis(*random.one_of(&[1_500, 4_000, 9_000]));
                if let Ok(mut stream) = TcpStream::connect_timeout(random.one_of(&vips), patience) {
                    stream.set_read_timeout(Some(patience))?;
                    let _ = stream.read(&mut [0; 64]);
                    self.connected.fetch_add(1, Ordering::Relaxed);
                }
                self.sleep(random.below(400) as u64);
            }
            Ok(())
        })
    }

    /// Watches that nothing is ejected for this time, and until all servers were under suspicion.
    /// Then one of them dies.
    fn watch(&self, duration: Duration) -> Result<()> {
        let scene = self.scene;
        let began = Instant::now();
        let dropped_before = self.dropped()?;
        let all: BTreeSet<SocketAddr> =
            self.slow.iter().flat_map(|(pod, _)| endpoints(pod)).collect();
        let mut suspected: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        let mut looks = 0;
        while began.elapsed() < duration || !all.iter().all(|it| suspected.contains_key(it)) {
            ensure!(
                began.elapsed() < duration + FOUND,
                "no overload: {suspected:?}\n{:#}",
                scene.status()?
            );
            for state in ["ejected", "unresponsive"] {
                let found = scene.in_state(state)?;
                ensure!(
                    found.is_empty(),
                    "{state} after {:?}: {found:?}\n{:#?} at {:?}\n{:#}\n{}",
                    began.elapsed(),
                    self.pauses,
                    Instant::now(),
                    scene.status()?,
                    scene.agent.log()
                );
            }
            for endpoint in scene.in_state("suspected")? {
                *suspected.entry(endpoint).or_default() += 1;
            }
            looks += 1;
            if looks % 60 == 0 {
                println!(
                    "{:.0?}: {looks} looks, {} connections, under suspicion: {suspected:?}",
                    began.elapsed(),
                    self.connected.load(Ordering::Relaxed)
                );
            }
            thread::sleep(LOOK);
        }
        assert_eq!(scene.metric("shunt_endpoint_ejections_total")?, 0.0);
        assert_eq!(scene.status()?["ejections"], 0);
        // The queues were full, and servers went on nevertheless.
        for ((pod, _), (before, after)) in
            self.slow.iter().zip(dropped_before.into_iter().zip(self.dropped()?))
        {
            ensure!(after > before, "{pod} has never dropped a SYN");
        }
        let connections = self.connected.load(Ordering::Relaxed);
        ensure!(connections > 0, "no connection");

        // The detector is still at work.
        let (dead, _) = &self.slow[2];
        kill(dead)?;
        let mut wanted = endpoints(dead);
        wanted.sort_unstable();
        scene.wait("the dead endpoint ejected", |scene| {
            let ejected = scene.in_state("ejected")?;
            for endpoint in &ejected {
                ensure!(wanted.contains(endpoint), "{endpoint} lives\n{}", scene.agent.log());
            }
            Ok(ejected == wanted)
        })?;
        let longest: Vec<Duration> = self
            .pauses
            .iter()
            .map(|pauses| pauses.lock().unwrap_or_else(PoisonError::into_inner).longest)
            .collect();
        println!("longest pauses between two accepted connections: {longest:?}");
        println!(
            "{:.0?}: {looks} looks, {connections} connections, under suspicion: {suspected:?}",
            began.elapsed()
        );
        Ok(())
    }

    /// How many SYNs each slow pod has dropped, since the queue of its server was full.
    fn dropped(&self) -> Result<Vec<u64>> {
        self.slow.iter().map(|(pod, _)| pod.run(listen_overflows)).collect()
    }
}

/// `ListenOverflows` of the network namespace of this thread.
fn listen_overflows() -> Result<u64> {
    let statistics = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    // A line with names, then one with values.
    let mut lines = statistics.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut columns = names.split(' ').zip(values.split(' '));
    let found = columns.find(|(name, _)| *name == "ListenOverflows");
    found.and_then(|(_, value)| value.parse().ok()).context("no ListenOverflows in netstat")
}
