//! A node with an agent on a directory of manifests. No packet is sent here.

use std::fmt::Display;

use anyhow::Result;
use shunt_testbed::{Agent, AgentBuilder, EndpointSlice, Exposition, Host, ManifestDir, Protocol};
use shunt_testbed::{Service, Topology};

pub(crate) const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
pub(crate) const HEALTH: u16 = 10_256;
pub(crate) const METRICS: u16 = 10_249;

pub(crate) struct World {
    pub(crate) lab: Topology,
    pub(crate) manifests: ManifestDir,
}

impl World {
    /// Without any manifest.
    pub(crate) fn new() -> Result<World> {
        Ok(World { lab: Topology::new()?, manifests: ManifestDir::new()? })
    }

    pub(crate) fn agent(&self) -> AgentBuilder {
        Agent::builder(SHUNT, &self.lab.node).manifests(&self.manifests)
    }

    /// Puts an object into a file.
    pub(crate) fn write(&self, file: &str, content: impl Display) -> Result<()> {
        self.manifests.write(file, content)
    }
}

/// A Service on TCP port 80 with these ClusterIPs.
pub(crate) fn service(name: &str, ips: &[&str]) -> Service {
    Service::new(name).cluster_ips(ips).port("http", Protocol::Tcp, 80)
}

/// The slices of such a Service.
pub(crate) fn slices(service: &str, hosts: &[&Host]) -> String {
    let slice = |slice: EndpointSlice| slice.port("http", Protocol::Tcp, 8080).hosts(hosts);
    format!("{}{}", slice(EndpointSlice::v4(service)), slice(EndpointSlice::v6(service)))
}

/// What the agent exports now.
pub(crate) fn scrape(agent: &Agent) -> Result<Exposition> {
    let answer = agent.http_get(METRICS, "/metrics")?;
    anyhow::ensure!(answer.status == 200, "{answer:?}");
    Exposition::parse(&answer.body)
}

/// Waits until so many Services are programmed, and returns what is exported then: metrics are read
/// one after the other, and that one is set after all others, so it takes another look.
pub(crate) fn wait_for_services(agent: &Agent, count: u32) -> Result<Exposition> {
    agent.wait_for_answer(METRICS, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        (scraped.value("shunt_services", &[]) == Some(count.into())).then_some(())
    })?;
    scrape(agent)
}
