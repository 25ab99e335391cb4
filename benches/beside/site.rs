//! A testbed for each of those that are compared, and the process that programs its node.

use std::io::Read;
use std::net::{SocketAddrV4, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use shunt_fake_apiserver::{Gate, Kubeconfig};
use shunt_testbed::{Agent, Echo, Program, TempDir, Topology};

use super::api::{CLUSTER_CIDR, Cluster, MARKER_PORT, Marker, SERVERS};
use crate::process::{children, share};
use crate::table::SHUNT;

/// How long a connection of a witness may take: longer than any that succeeds.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// The pauses of a witness: a share of the time that has passed, within limits.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
const PAUSES_PER_WAIT: u32 = 200;

/// A process is calm if it takes less of a core than this, for this long.
const CALM_SHARE: f64 = 0.02;
const CALM: Duration = Duration::from_secs(1);

/// Those that are compared. All have the same configuration but for the mode, and their defaults
/// otherwise: kube-proxy waits `minSyncPeriod`, one second, after a sync, and shunt does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Shunt,
    Nftables,
    Iptables,
}

impl Subject {
    pub(crate) const ALL: [Subject; 3] = [Subject::Shunt, Subject::Nftables, Subject::Iptables];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Subject::Shunt => SHUNT,
            Subject::Nftables => "kube-proxy nftables",
            Subject::Iptables => "kube-proxy iptables",
        }
    }

    fn configuration(self, kubeconfig: &Kubeconfig) -> String {
        let mode = if self == Subject::Iptables { "iptables" } else { "nftables" };
        // A network namespace cannot set the size of the table of connection tracking.
        format!(
            "mode: {mode}\nconntrack: {{maxPerCore: 0, min: 0}}\n\
             clientConnection: {{kubeconfig: {:?}}}\n\
             detectLocalMode: ClusterCIDR\nclusterCIDR: {CLUSTER_CIDR}\n",
            kubeconfig.path()
        )
    }
}

/// A node for one of those that are compared, with a way to the API server, and pods around it.
pub(crate) struct Site<'a> {
    pub(crate) subject: Subject,
    pub(crate) lab: Topology,
    cluster: &'a Cluster,
    _gate: Gate,
    kubeconfig: Kubeconfig,
    folder: TempDir,
    _servers: Vec<Echo>,
}

impl<'a> Site<'a> {
    /// A node whose kernel holds nothing yet.
    pub(crate) fn new(subject: Subject, cluster: &'a Cluster) -> Result<Site<'a>> {
        let lab = Topology::new()?;
        let server = |port: &u16| Echo::start(&lab.pod2.ns, &port.to_string(), *port);
        let servers = SERVERS.iter().map(server).collect::<Result<_>>()?;
        let (gate, kubeconfig) = cluster.kubernetes.reach(&lab.node)?;
        let folder = TempDir::new()?;
        Ok(Site { subject, lab, cluster, _gate: gate, kubeconfig, folder, _servers: servers })
    }

    /// Starts the process and waits for nothing.
    pub(crate) fn start(&self) -> Result<Running> {
        let settings = self.subject.configuration(&self.kubeconfig);
        let started = Instant::now();
        let process = if self.subject == Subject::Shunt {
            let agent = Agent::builder(env!("CARGO_BIN_EXE_shunt"), &self.lab.node);
            Process::Shunt(agent.config(&settings)?.spawn()?)
        } else {
            let kubernetes = &self.cluster.kubernetes;
            let folder = self.folder.path();
            Process::KubeProxy(kubernetes.kube_proxy(&self.lab.node, &settings, folder)?)
        };
        Ok(Running { process, started })
    }

    /// Waits until connections from a pod to these markers reach the servers that the API server
    /// names. Returns how long that took since `since`; none after `limit`.
    ///
    /// Every question is a new connection. A pause between two of them is at most a two hundredth of
    /// the time that is measured, but 0.2 ms at least and 5 ms at most.
    pub(crate) fn wait_for(
        &self,
        markers: &[Marker],
        since: Instant,
        limit: Duration,
    ) -> Result<Option<Duration>> {
        let cluster = self.cluster;
        self.lab.pod1.run(|| {
            let mut waiting = markers.to_vec();
            while let Some(&marker) = waiting.last() {
                let asked = server_behind(SocketAddrV4::new(marker.address(), MARKER_PORT));
                let took = since.elapsed();
                if asked == Some(cluster.server_behind(marker)) {
                    waiting.pop();
                } else if took > limit {
                    return Ok(None);
                } else {
                    let pause = took / PAUSES_PER_WAIT;
                    thread::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
                }
            }
            Ok(Some(since.elapsed()))
        })
    }

    /// Waits until everything is programmed: until all markers answer. Returns how long that took
    /// since the process started; after `limit` an error, with what the process says.
    pub(crate) fn wait_until_programmed(
        &self,
        running: &Running,
        limit: Duration,
    ) -> Result<Duration> {
        let took = self.wait_for(&Marker::ALL, running.started, limit)?;
        took.with_context(|| {
            let name = self.subject.name();
            format!("{name}: not programmed within {limit:?}\n{}", running.log())
        })
    }
}

/// The port of the server that a new connection reaches. The connection is reset afterwards.
fn server_behind(to: SocketAddrV4) -> Option<u16> {
    let mut connection = TcpStream::connect_timeout(&to.into(), CONNECT_TIMEOUT).ok()?;
    setsockopt(&connection, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).ok()?;
    connection.set_read_timeout(Some(CONNECT_TIMEOUT)).ok()?;
    let mut greeting = [0; 64];
    let length = connection.read(&mut greeting).ok()?;
    let greeting = String::from_utf8_lossy(&greeting[..length]);
    greeting.split_whitespace().next()?.parse().ok()
}

/// A process that programs a node. It is killed on drop; its rules stay.
pub(crate) struct Running {
    process: Process,
    pub(crate) started: Instant,
}

enum Process {
    Shunt(Agent),
    KubeProxy(Program),
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        match &self.process {
            Process::Shunt(agent) => agent.pid(),
            Process::KubeProxy(program) => program.pid(),
        }
    }

    /// Kills it, and the programs that it started, and waits for their end.
    pub(crate) fn stop(self) -> Result<()> {
        let children = children(self.pid())?;
        drop(self.process);
        for child in children {
            let pid = Pid::from_raw(child);
            // It may have ended; in the kernel it may still be at work.
            while kill(pid, Signal::SIGKILL).is_ok() {
                thread::sleep(LONGEST_PAUSE);
            }
        }
        Ok(())
    }

    /// The end of what it has logged.
    pub(crate) fn log(&self) -> String {
        let log = match &self.process {
            Process::Shunt(agent) => agent.log(),
            Process::KubeProxy(program) => program.log(),
        };
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Waits until neither it nor a program that it started does anything.
    pub(crate) fn wait_until_calm(&self, limit: Duration) -> Result<()> {
        let started = Instant::now();
        while share(self.pid(), CALM)? >= CALM_SHARE {
            ensure!(started.elapsed() < limit, "does not become calm\n{}", self.log());
        }
        Ok(())
    }
}
