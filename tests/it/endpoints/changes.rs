//! What the scenarios change: endpoints and their conditions, and the agent itself.

use std::cell::Cell;
use std::fmt::Display;

use anyhow::{Context, Result};
use shunt_testbed::{Agent, EndpointSlice, Host};

use crate::world::{World, cluster_ip_service, target_ports};

/// An agent for the world with what follows changes closely.
pub(crate) struct Changes {
    agent: Option<Agent>,
    marks: Cell<u8>,
}

impl Changes {
    pub(crate) fn start(world: &World) -> Result<Self> {
        Ok(Self { agent: Some(world.start()?), marks: Cell::new(0) })
    }

    pub(crate) fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("the agent is down")
    }

    /// Waits until all that was written before this is in the kernel: files are read in the order
    /// of their changes, so once a Service written now is there, they are.
    pub(crate) fn settle(&self, world: &World) -> Result<()> {
        let mark = self.marks.get() + 1;
        self.marks.set(mark);
        let ips = [format!("10.96.255.{mark}"), format!("fd00:96::f:{mark:x}")];
        let marker = cluster_ip_service("marker", &[&ips[0], &ips[1]]);
        world.manifests.write("zz-marker.yaml", marker)?;
        let client = world.lab.from(&world.lab.client);
        for to in [format!("{}:80", ips[0]), format!("[{}]:80", ips[1])] {
            client.tcp(to).times(1).eventually().refused();
        }
        Ok(())
    }

    /// Writes a file and waits until that is in the kernel.
    pub(crate) fn write(&self, world: &World, file: &str, content: impl Display) -> Result<()> {
        world.manifests.write(file, content)?;
        self.settle(world)
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.agent.take().context("the agent is down")?.kill()
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self, world: &World) -> Result<()> {
        self.agent = Some(world.start()?);
        Ok(())
    }
}

/// Conditions of an endpoint.
pub(crate) const READY: &str = "conditions: {ready: true}";
pub(crate) const UNREADY: &str = "conditions: {ready: false, serving: false, terminating: false}";
pub(crate) const SERVING: &str = "conditions: {ready: false, serving: true, terminating: true}";
pub(crate) const DYING: &str = "conditions: {ready: false, serving: false, terminating: true}";

/// A slice for each family with the ports of [`web`](crate::world::web), and endpoints with these
/// fields; `suffix` tells it from others of the Service.
pub(crate) fn slices_of(service: &str, suffix: &str, endpoints: &[(&Host, &str)]) -> String {
    let slice = |slice: EndpointSlice, family: &str| {
        let slice = target_ports(slice.name(&format!("{service}-{suffix}-{family}")));
        endpoints.iter().fold(slice, |slice, (host, fields)| slice.host(host, fields))
    };
    let (v4, v6) = (EndpointSlice::v4(service), EndpointSlice::v6(service));
    format!("{}{}", slice(v4, "v4"), slice(v6, "v6"))
}
