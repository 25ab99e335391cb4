//! A node with Services, endpoints that die, and clients that connect.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket,
    sockopt,
};
use serde_json::Value;
use shunt_testbed::{Agent, Host, patience};

use crate::world::{CLUSTER_CIDR, TARGET, World, status_json};

/// Linux sends a SYN again after 1, 3, 7 and 15 s. A connection that the agent does not help takes
/// longer than this, or never succeeds.
pub(super) fn rescued() -> Duration {
    patience(Duration::from_secs(14))
}

/// A connection to an endpoint that answers does not take longer: it sends its SYN once.
pub(super) fn at_once() -> Duration {
    patience(Duration::from_millis(900))
}

/// Long enough for a verdict about a silent port of a live host, and for a busy machine.
pub(super) const FOUND: Duration = Duration::from_secs(60);

/// The agent on a node, with the mode of `--eject-unresponsive`.
pub(super) struct Scene {
    pub(super) world: World,
    pub(super) agent: Agent,
}

impl Scene {
    pub(super) fn start(world: World, mode: &str) -> Result<Self> {
        let builder = world.agent(CLUSTER_CIDR)?;
        let agent = builder.arg(format!("--eject-unresponsive={mode}")).start()?;
        Ok(Self { world, agent })
    }

    /// What `shunt status` says about unresponsive endpoints.
    pub(super) fn status(&self) -> Result<Value> {
        Ok(status_json(&self.world.lab.node)?["unresponsive"].take())
    }

    /// The endpoints in this state.
    pub(super) fn in_state(&self, state: &str) -> Result<Vec<SocketAddr>> {
        let status = self.status()?;
        let all = status["endpoints"].as_array().context("no endpoints")?;
        let those = all.iter().filter(|it| it["state"] == state);
        let address = |it: &Value| Ok(it["endpoint"].as_str().context("no address")?.parse()?);
        those.map(address).collect()
    }

    /// Waits for a condition of the agent's state.
    pub(super) fn wait(&self, what: &str, is_met: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + patience(FOUND);
        while !is_met(self)? {
            ensure!(
                Instant::now() < deadline,
                "never: {what}\n{:#}\n{}",
                self.status()?,
                self.agent.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until exactly these endpoints are ejected.
    pub(super) fn wait_ejected(&self, endpoints: &[SocketAddr]) -> Result<()> {
        self.wait_state("ejected", endpoints)
    }

    pub(super) fn wait_state(&self, state: &str, endpoints: &[SocketAddr]) -> Result<()> {
        let mut wanted = endpoints.to_vec();
        wanted.sort_unstable();
        self.wait(&format!("{state}: {wanted:?}"), |scene| Ok(scene.in_state(state)? == wanted))
    }

    /// Connects again and again until exactly these endpoints are ejected. Every connection must
    /// come about; returns the servers.
    pub(super) fn connect_until_ejected(
        &self,
        callers: &[(&Host, SocketAddr)],
        endpoints: &[SocketAddr],
    ) -> Result<Vec<String>> {
        let mut wanted = endpoints.to_vec();
        wanted.sort_unstable();
        let deadline = Instant::now() + patience(FOUND);
        let mut servers = Vec::new();
        loop {
            servers.extend(connect_all(callers, rescued())?);
            if self.in_state("ejected")? == wanted {
                return Ok(servers);
            }
            ensure!(Instant::now() < deadline, "not ejected: {:#}", self.status()?);
        }
    }

    /// Connects some times while all is well. Connection tracking shows then that no policy blocks
    /// these clients. Without that, nothing speaks against one if all other backends are local.
    pub(super) fn warm_up(&self, callers: &[(&Host, SocketAddr)]) -> Result<()> {
        (0..7).try_for_each(|_| connect_all(callers, rescued()).map(drop))
    }

    /// The value of a metric of the agent without labels.
    pub(super) fn metric(&self, name: &str) -> Result<f64> {
        let answer = self.agent.http_get(shunt_testbed::METRICS_PORT, "/metrics")?;
        let exposition = shunt_testbed::Exposition::parse(&answer.body)?;
        exposition.value(name, &[]).with_context(|| format!("no metric {name}"))
    }
}

/// Connects once; returns the name of the server.
pub(super) fn connect(host: &Host, to: SocketAddr, timeout: Duration) -> Result<String> {
    let began = Instant::now();
    host.run(|| {
        let stream = TcpStream::connect_timeout(&to, timeout)
            .with_context(|| format!("from {host} to {to}, after {:?}", began.elapsed()))?;
        stream.set_read_timeout(Some(timeout))?;
        let mut greeting = String::new();
        BufReader::new(stream).read_line(&mut greeting)?;
        Ok(greeting.split(' ').next().unwrap_or_default().to_owned())
    })
}

/// Connects from all of these at the same time; each must reach a server.
pub(super) fn connect_all(
    callers: &[(&Host, SocketAddr)],
    timeout: Duration,
) -> Result<Vec<String>> {
    thread::scope(|scope| {
        let calls: Vec<_> = callers
            .iter()
            .map(|(host, to)| scope.spawn(move || connect(host, *to, timeout)))
            .collect();
        let join = |call: thread::ScopedJoinHandle<'_, _>| match call.join() {
            Ok(server) => server,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        calls.into_iter().map(join).collect()
    })
}

/// So many calls from the same host.
pub(super) fn times<'a>(
    count: usize,
    host: &'a Host,
    to: &str,
) -> Result<Vec<(&'a Host, SocketAddr)>> {
    let to: SocketAddr = to.parse()?;
    Ok(vec![(host, to); count])
}

/// A socket on all addresses that listens with a short queue.
pub(super) fn listen(port: u16) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
    setsockopt(&listener, sockopt::ReuseAddr, &true)?;
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    bind(listener.as_raw_fd(), &SockaddrStorage::from(any))?;
    socket::listen(&listener, Backlog::new(1)?)?;
    Ok(listener)
}

/// The endpoints of a pod: its addresses with the port of the servers.
pub(super) fn endpoints(pod: &Host) -> Vec<SocketAddr> {
    pod.ips().map(|ip| SocketAddr::new(ip, TARGET)).collect()
}

/// The endpoint of the first family only.
pub(super) fn endpoint(pod: &Host) -> SocketAddr {
    SocketAddr::new(IpAddr::from(pod.ipv4[0]), TARGET)
}

/// The pod hears and says nothing any more.
pub(super) fn kill(pod: &Host) -> Result<()> {
    drop_input(pod, "")
}

/// The pod hears nothing on the port of its server; it refuses connections to others.
pub(super) fn drop_port(pod: &Host) -> Result<()> {
    drop_input(pod, &format!("tcp dport {TARGET}"))
}

/// The pod drops the packets that match.
pub(super) fn drop_input(pod: &Host, which: &str) -> Result<()> {
    pod.nft(&format!(
        "table inet dead {{
             chain input {{
                 type filter hook input priority 0
                 {which} drop
             }}
         }}"
    ))
}

/// Ends what [`kill`], [`drop_port`] and [`drop_input`] began.
pub(super) fn revive(pod: &Host) -> Result<()> {
    pod.nft("delete table inet dead")
}
