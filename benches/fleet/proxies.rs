//! The clients of real kube-proxy processes.

use std::iter::zip;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shunt_fake_apiserver::{Gate, Kubeconfig};
use shunt_testbed::{Netns, Program, TempDir};

use crate::beside::Cluster;
use crate::process::cpu_time;

/// A process is calm if it uses less of a core than this, for this long.
const CALM_SHARE: f64 = 0.03;
const CALM: Duration = Duration::from_secs(1);

/// kube-proxy, on a node of its own.
struct Proxy {
    program: Program,
    _gate: Gate,
    _files: (Kubeconfig, TempDir),
}

impl Proxy {
    fn start(cluster: &Cluster) -> Result<Proxy> {
        let kubernetes = &cluster.kubernetes;
        let netns = Netns::new()?;
        netns.ip("link set lo up")?;
        let (gate, kubeconfig) = kubernetes.reach(&netns)?;
        let folder = TempDir::new()?;
        // It syncs once, and then it only receives: here its client is measured, not its rules.
        let settings = format!(
            "mode: nftables\nnftables: {{minSyncPeriod: 1h, syncPeriod: 1h}}\n\
             conntrack: {{maxPerCore: 0, min: 0}}\n\
             clientConnection: {{kubeconfig: {:?}}}\n",
            kubeconfig.path()
        );
        let program = kubernetes.kube_proxy(&netns, &settings, folder.path())?;
        Ok(Proxy { program, _gate: gate, _files: (kubeconfig, folder) })
    }
}

/// A few kube-proxy processes.
pub(super) struct Proxies(Vec<Proxy>);

impl Proxies {
    pub(super) fn start(cluster: &Cluster, count: usize) -> Result<Proxies> {
        (0..count).map(|_| Proxy::start(cluster)).collect::<Result<_>>().map(Proxies)
    }

    /// Waits until none of them does anything, nor a program that it has started.
    pub(super) fn wait_until_calm(&self, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        let times = || self.0.iter().map(|proxy| cpu_time(proxy.program.pid()));
        loop {
            let (before, at) = (times().collect::<Result<Vec<_>>>()?, Instant::now());
            thread::sleep(CALM);
            let after = times().collect::<Result<Vec<_>>>()?;
            let limit = at.elapsed().mul_f64(CALM_SHARE);
            let busy = zip(before, after).position(|(before, after)| after - before > limit);
            let Some(busy) = busy else { return Ok(()) };
            let log = || self.0[busy].program.log();
            ensure!(started.elapsed() < timeout, "kube-proxy does not become calm\n{}", log());
        }
    }
}
