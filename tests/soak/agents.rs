//! The agent of the node, one after the other, and how much memory each takes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_core::plan::ChainName;
use shunt_testbed::{Agent, AgentBuilder, HEALTH_PORT, Host, Netns};

use crate::cluster::Cluster;
use crate::report::Growth;

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
const CONFIG: &str = "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";
/// Chains that nothing needs are deleted a second after the last commit.
const CALM: Duration = Duration::from_secs(2);
/// How often memory is looked at.
const EVERY: Duration = Duration::from_millis(500);

/// All processes of the soak.
pub(crate) struct Agents {
    inner: Arc<Mutex<Inner>>,
    sampler: Option<JoinHandle<()>>,
}

struct Inner {
    current: Option<Agent>,
    /// The memory of the one that runs.
    samples: Vec<u64>,
    /// Transactions of those that ended in good order.
    commits: f64,
    over: bool,
}

/// How an agent ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
}

impl Agents {
    /// Starts the first, and waits until it is ready.
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        let agent = builder(cluster, true)?.start()?;
        let inner = Arc::new(Mutex::new(Inner {
            current: Some(agent),
            samples: Vec::new(),
            commits: 0.0,
            over: false,
        }));
        let sampled = Arc::clone(&inner);
        let sampler = thread::Builder::new().name("memory".into()).spawn(move || {
            loop {
                thread::sleep(EVERY);
                let mut inner = lock(&sampled);
                if inner.over {
                    return;
                }
                inner.sample();
            }
        })?;
        Ok(Self { inner, sampler: Some(sampler) })
    }

    /// Ends the agent and starts another, which owns its tables or shares them. `meanwhile` is done
    /// while none runs. The new one need not be ready yet.
    pub(crate) fn replace(
        &self,
        cluster: &Cluster,
        end: End,
        owns: bool,
        meanwhile: Duration,
    ) -> Result<()> {
        let mut inner = self.lock();
        inner.end(end)?;
        thread::sleep(meanwhile);
        inner.take(builder(cluster, owns)?.spawn()?);
        Ok(())
    }

    /// Starts another, which waits, and ends the one that runs.
    pub(crate) fn overlap(&self, cluster: &Cluster, end: End, owns: bool) -> Result<()> {
        let mut inner = self.lock();
        // Until it has the namespace, the next one could be first.
        listens(inner.current()?)?;
        let next = builder(cluster, owns)?.spawn()?;
        next.wait_for_log(&["waiting until it ends"])?;
        inner.end(end)?;
        inner.take(next);
        Ok(())
    }

    /// Waits until the one that runs is ready.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.lock().current()?.wait_ready()
    }

    /// How the memory of the one that runs has developed.
    pub(crate) fn growth(&self) -> Growth {
        Growth::of(&self.lock().samples)
    }

    /// How many transactions all of them have committed, except for those that were killed.
    pub(crate) fn commits(&self) -> Result<f64> {
        let inner = self.lock();
        Ok(inner.commits + commits(inner.current()?)?)
    }

    /// What the one that runs has logged.
    pub(crate) fn log(&self) -> String {
        self.lock().current.as_ref().map(|agent| agent.log()).unwrap_or_default()
    }

    /// Stops the last one, and tells how what the kernel holds differs from what a fresh start makes:
    /// in this namespace, where it may not write anything, and in an empty one.
    pub(crate) fn stop_and_compare(mut self, cluster: &Cluster) -> Result<Vec<String>> {
        let node = &cluster.lab.node;
        wait_until_calm(node)?;
        self.lock().end(End::Stopped)?;
        self.finish();
        let generation = node.nft_generation()?;
        once(cluster, node)?;
        let mut differences = Vec::new();
        let written = node.nft_generation()?.wrapping_sub(generation);
        if written > 0 {
            differences.push(format!("a fresh start committed {written} transactions"));
        }
        let empty = Host { ns: Netns::new()?, ..node.clone() };
        once(cluster, &empty)?;
        let (live, wanted) = (node.ruleset()?, empty.ruleset()?);
        ensure!(wanted.len() > 100, "there is next to nothing to compare: {wanted:#?}");
        let beside = |some: &[String], others: &[String]| -> Vec<String> {
            let others: BTreeSet<&String> = others.iter().collect();
            some.iter().filter(|line| !others.contains(line)).cloned().collect()
        };
        // Chains that no frontend needs any more stay for a while.
        let mut not_planned = beside(&live, &wanted);
        not_planned.retain(|line| !is_of_a_chain_on_demand(line));
        for (what, lines) in [("not planned", not_planned), ("not there", beside(&wanted, &live))] {
            differences.extend(lines.into_iter().map(|line| format!("{what}: {line}")));
        }
        Ok(differences)
    }

    fn finish(&mut self) {
        self.lock().over = true;
        let _ = self.sampler.take().map(JoinHandle::join);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

fn is_of_a_chain_on_demand(line: &str) -> bool {
    let Ok(object) = serde_json::from_str::<serde_json::Value>(line) else { return false };
    let name = object["chain"]["name"].as_str().or(object["rule"]["chain"].as_str());
    name.and_then(ChainName::parse).is_some_and(ChainName::is_on_demand)
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Inner {
    fn current(&self) -> Result<&Agent> {
        self.current.as_ref().context("an agent did not end as it was asked to")
    }

    fn end(&mut self, end: End) -> Result<()> {
        // Who is killed before it serves metrics has not committed much.
        self.commits += self.current().and_then(commits).unwrap_or_default();
        let agent = self.current.take().context("no agent runs")?;
        match end {
            End::Stopped => {
                // Before, it has not asked to be told of signals, and ends by them.
                listens(&agent)?;
                agent.stop()
            }
            End::Killed => agent.kill(),
        }
    }

    fn take(&mut self, agent: Agent) {
        self.current = Some(agent);
        self.samples.clear();
    }

    fn sample(&mut self) {
        let resident = self.current.as_ref().and_then(|agent| agent.resident().ok());
        self.samples.extend(resident);
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn builder(cluster: &Cluster, owns: bool) -> Result<AgentBuilder> {
    let kubeconfig = cluster.kubeconfig.path();
    let config = format!("{CONFIG}clientConnection: {{kubeconfig: {kubeconfig:?}}}\n");
    let agent = Agent::builder(SHUNT, &cluster.lab.node).arg(format!("--own-tables={owns}"));
    agent.config(&config)
}

/// Waits until an agent acts: it listens then.
fn listens(agent: &Agent) -> Result<()> {
    agent.wait_for_answer(HEALTH_PORT, "/livez", |_| Some(()))
}

/// Programs a node once, straight from the server.
fn once(cluster: &Cluster, node: &Host) -> Result<()> {
    let kubeconfig = cluster.direct.path();
    let config = format!("{CONFIG}clientConnection: {{kubeconfig: {kubeconfig:?}}}\n");
    let output = Agent::builder(SHUNT, node).config(&config)?.once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Waits until nothing has been committed for longer than unused chains stay.
fn wait_until_calm(node: &Netns) -> Result<()> {
    let (mut last, mut since) = (node.nft_generation()?, Instant::now());
    let started = since;
    while since.elapsed() < CALM {
        ensure!(started.elapsed() < 30 * CALM, "the agent writes though nothing changes");
        thread::sleep(Duration::from_millis(50));
        let now = node.nft_generation()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Transactions that an agent has committed.
fn commits(agent: &Agent) -> Result<f64> {
    agent.scrape()?.value("shunt_commits_total", &[]).context("no shunt_commits_total")
}
