//! The agent of the node, one after the other, and how much memory each takes.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_core::plan::ChainName;
use shunt_fake_apiserver::Kubeconfig;
use shunt_testbed::{Agent, AgentBuilder, CLUSTER_CIDR, HEALTH_PORT, Host, Netns};

use crate::cluster::Cluster;
use crate::report::Growth;

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
/// Chains that nothing needs are deleted a second after the last commit.
const CALM: Duration = Duration::from_secs(2);

/// All processes of the soak.
pub(crate) struct Agents {
    current: Option<Agent>,
    /// The memory of the one that runs.
    samples: Vec<u64>,
    /// Transactions of those that ended in good order.
    commits: f64,
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
        let current = Some(builder(cluster, true)?.start()?);
        Ok(Self { current, samples: Vec::new(), commits: 0.0 })
    }

    /// Ends the agent and starts another, which owns its tables or shares them. `meanwhile` is done
    /// while none runs. The new one need not be ready yet.
    pub(crate) fn replace(
        &mut self,
        cluster: &Cluster,
        end: End,
        owns: bool,
        meanwhile: Duration,
    ) -> Result<()> {
        self.end(end)?;
        thread::sleep(meanwhile);
        self.take(builder(cluster, owns)?.spawn()?);
        Ok(())
    }

    /// Starts another, which waits, and ends the one that runs.
    pub(crate) fn overlap(&mut self, cluster: &Cluster, end: End, owns: bool) -> Result<()> {
        // Until it has the namespace, the next one could be first.
        listens(self.current()?)?;
        let next = builder(cluster, owns)?.spawn()?;
        next.wait_for_log(&["waiting until it ends"])?;
        self.end(end)?;
        self.take(next);
        Ok(())
    }

    /// Looks at the memory of the one that runs.
    pub(crate) fn sample(&mut self) -> Result<()> {
        let resident = self.current()?.resident()?;
        self.samples.push(resident);
        Ok(())
    }

    /// How the memory of the one that runs has developed.
    pub(crate) fn growth(&self) -> Growth {
        Growth::of(&self.samples)
    }

    /// How many transactions all of them have committed, except for those that were killed.
    pub(crate) fn commits(&self) -> Result<f64> {
        Ok(self.commits + commits(self.current()?)?)
    }

    /// The one that runs.
    pub(crate) fn current(&self) -> Result<&Agent> {
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

    /// Stops the last one, and tells how what the kernel holds differs from what a fresh start makes:
    /// in this namespace, where it may not write anything, and in an empty one.
    pub(crate) fn stop_and_compare(mut self, cluster: &Cluster) -> Result<Vec<String>> {
        let node = &cluster.lab.node;
        wait_until_calm(node)?;
        self.end(End::Stopped)?;
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
}

fn is_of_a_chain_on_demand(line: &str) -> bool {
    let Ok(object) = serde_json::from_str::<serde_json::Value>(line) else { return false };
    let name = object["chain"]["name"].as_str().or(object["rule"]["chain"].as_str());
    name.and_then(ChainName::parse).is_some_and(ChainName::is_on_demand)
}

fn builder(cluster: &Cluster, owns: bool) -> Result<AgentBuilder> {
    let agent = with_config(&cluster.lab.node, &cluster.kubeconfig)?;
    Ok(agent.arg(format!("--own-tables={owns}")))
}

fn with_config(node: &Host, kubeconfig: &Kubeconfig) -> Result<AgentBuilder> {
    let path = kubeconfig.path();
    let config = format!("{CLUSTER_CIDR}clientConnection: {{kubeconfig: {path:?}}}\n");
    Agent::builder(SHUNT, node).config(&config)
}

/// Waits until an agent acts: it listens then.
fn listens(agent: &Agent) -> Result<()> {
    agent.wait_for_answer(HEALTH_PORT, "/livez", |_| Some(()))
}

/// Programs a node once, straight from the server.
fn once(cluster: &Cluster, node: &Host) -> Result<()> {
    let output = with_config(node, &cluster.direct)?.once()?;
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
