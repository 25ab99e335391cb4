//! Another program that keeps the agent from its tables.

use anyhow::Result;
use nfnetlink::nft::{Batch, Kernel as _, Socket, TABLE_OWNER, TableFamily};

use crate::netns::Netns;

/// Somebody else whose table, under the agent's name, nobody may touch (kernel 5.12 and later). It is
/// gone when this is dropped.
pub struct Occupier(#[expect(dead_code, reason = "the socket owns the table")] Socket);

impl Occupier {
    /// Replaces the agent's table `ip shunt` by an empty one of its own. The agent must not own it.
    pub fn enter(ns: &Netns) -> Result<Self> {
        let mut socket = ns.run(|| Ok(Socket::open()?))?;
        let mut batch = Batch::new(None);
        batch.delete_table(TableFamily::Ip, "shunt");
        batch.add_table(TableFamily::Ip, "shunt", TABLE_OWNER, "");
        socket.commit(&batch.finish())?;
        Ok(Self(socket))
    }
}
