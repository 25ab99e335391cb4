//! What a kube-apiserver has used: processor time, and bytes that it has sent.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::beside::Cluster;
use crate::process::{cpu_time, share};

/// The time before a run in which nothing happens, and the server's share of a core is measured.
const IDLE: Duration = Duration::from_secs(3);
/// The server is calm if it uses less of a core than this.
const CALM_SHARE: f64 = 0.03;
const CALM: Duration = Duration::from_secs(1);
const CALM_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) struct Server<'a> {
    cluster: &'a Cluster,
    pid: i32,
    /// The addresses from which the server is connected to itself: it lists all Services from time to
    /// time.
    own: HashSet<String>,
}

/// All that the server has used at a time.
pub(super) struct Snapshot {
    at: Instant,
    /// The share of a core that it used just before.
    idle: f64,
    processor: Duration,
    /// Bytes that each connection has taken, by the client's address.
    sent: HashMap<String, u64>,
}

/// What the server has used in a run, without what it uses while nothing happens.
pub(super) struct Usage {
    pub(super) processor: Duration,
    pub(super) sent: u64,
}

impl<'a> Server<'a> {
    /// A server that has no clients yet.
    pub(super) fn new(cluster: &'a Cluster) -> Result<Server<'a>> {
        let pid = cluster.kubernetes.pid()?;
        let mut server = Server { cluster, pid, own: HashSet::new() };
        server.wait_until_calm()?;
        server.own = server.sent()?.into_keys().collect();
        Ok(server)
    }

    pub(super) fn wait_until_calm(&self) -> Result<()> {
        let started = Instant::now();
        while share(self.pid, CALM)? > CALM_SHARE {
            ensure!(started.elapsed() < CALM_TIMEOUT, "kube-apiserver does not become calm");
        }
        Ok(())
    }

    /// Waits until the server is calm, and takes a snapshot before a run.
    pub(super) fn before(&self) -> Result<Snapshot> {
        self.wait_until_calm()?;
        let idle = share(self.pid, IDLE)?;
        self.snapshot(idle)
    }

    fn snapshot(&self, idle: f64) -> Result<Snapshot> {
        let sent = self.sent()?;
        Ok(Snapshot { at: Instant::now(), idle, processor: cpu_time(self.pid)?, sent })
    }

    /// Waits until the server is calm. Returns what it has used since a snapshot, for all clients
    /// that are connected.
    pub(super) fn usage_since(&self, before: &Snapshot) -> Result<Usage> {
        self.wait_until_calm()?;
        let after = self.snapshot(before.idle)?;
        let earlier = |client: &String| before.sent.get(client).copied().unwrap_or_default();
        let sent = after.sent.iter().map(|(client, sent)| sent - earlier(client)).sum();
        Ok(Usage { processor: processor(before, &after), sent })
    }

    /// The same; of connections that exist since then, and no others.
    pub(super) fn usage_of_connections_since(&self, before: &Snapshot) -> Result<Usage> {
        self.wait_until_calm()?;
        let after = self.snapshot(before.idle)?;
        let mut sent = 0;
        for (client, earlier) in &before.sent {
            let now = after.sent.get(client);
            sent += now.with_context(|| format!("{client} has lost its connection"))? - earlier;
        }
        Ok(Usage { processor: processor(before, &after), sent })
    }

    /// Bytes that clients have acknowledged, of each open connection that is not the server's own.
    fn sent(&self) -> Result<HashMap<String, u64>> {
        let port = self.cluster.kubernetes.port();
        let filter = format!("sport = :{port}");
        let arguments = ["-tinHO", "state", "established", &filter];
        let lines = self.cluster.kubernetes.netns().output("ss", &arguments)?;
        let connection = |line: &str| {
            let mut fields = line.split_whitespace();
            // Both queues and the server's address come first.
            let client = fields.nth(3)?.to_owned();
            let acknowledged = fields.find_map(|field| field.strip_prefix("bytes_acked:"));
            // A new connection has none.
            Some((client, acknowledged.map_or(Some(0), |bytes| bytes.parse().ok())?))
        };
        let mut sent = HashMap::new();
        for line in lines.lines() {
            let (client, bytes) =
                connection(line).with_context(|| format!("ss prints {line:?}"))?;
            if !self.own.contains(&client) {
                sent.insert(client, bytes);
            }
        }
        Ok(sent)
    }
}

fn processor(before: &Snapshot, after: &Snapshot) -> Duration {
    let idle = (after.at - before.at).mul_f64(before.idle);
    (after.processor - before.processor).saturating_sub(idle)
}
