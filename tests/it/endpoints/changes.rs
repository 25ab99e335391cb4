//! An agent that is followed closely.

use std::cell::Cell;
use std::fmt::Display;

use anyhow::Result;
use shunt_testbed::Agent;

use crate::world::{World, cluster_ip_service};

/// An agent for the world with what follows changes closely.
pub(crate) struct Changes {
    agent: Agent,
    marks: Cell<u8>,
}

impl Changes {
    pub(crate) fn start(world: &World) -> Result<Self> {
        Ok(Self { agent: world.start()?, marks: Cell::new(0) })
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
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
}

/// The conditions of an endpoint.
pub(crate) const READY: &str = "conditions: {ready: true}";
