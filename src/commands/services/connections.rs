//! The tracked connections of a Service, by frontend and endpoint.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::AddAssign;

use foldhash::HashMap;
use nfnetlink::Error;
use nfnetlink::conntrack::{Connection, Conntrack, ProtocolState, Status};
use serde::Serialize;
use shunt_core::model::{Family, Protocol};
use shunt_core::plan::FrontendKey;

use crate::dataplane::table_family;

/// Numbers of tracked connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tracked {
    /// TCP connections and SCTP associations after their handshake, UDP flows with replies.
    pub established: u64,
    /// TCP connections whose SYN has no answer yet.
    pub syn_sent: u64,
    /// UDP flows without replies, and SCTP associations without an answer.
    pub unreplied: u64,
    /// Connections in other states, nearly always at their end.
    pub other: u64,
}

impl Tracked {
    fn count(&mut self, connection: &Connection) {
        /// The state of an SCTP association after its handshake (`enum sctp_conntrack`).
        const SCTP_ESTABLISHED: ProtocolState = ProtocolState::Sctp(4);
        let number = match connection.state {
            Some(ProtocolState::ESTABLISHED | SCTP_ESTABLISHED) => &mut self.established,
            Some(ProtocolState::SYN_SENT) => &mut self.syn_sent,
            Some(ProtocolState::Tcp(_)) => &mut self.other,
            _ if !connection.status.has(Status::SEEN_REPLY) => &mut self.unreplied,
            Some(ProtocolState::Sctp(_)) => &mut self.other,
            None => &mut self.established,
        };
        *number += 1;
    }
}

impl AddAssign for Tracked {
    fn add_assign(&mut self, other: Tracked) {
        self.established += other.established;
        self.syn_sent += other.syn_sent;
        self.unreplied += other.unreplied;
        self.other += other.other;
    }
}

/// The tracked connections of frontends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TrackedConnections(HashMap<(FrontendKey, (IpAddr, u16)), Tracked>);

impl TrackedConnections {
    /// Reads the connections of these frontends. `addresses` are those with node ports.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(super) fn read(
        conntrack: &mut Conntrack,
        keys: &BTreeSet<FrontendKey>,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<TrackedConnections, Error> {
        let mut found = TrackedConnections::default();
        for family in keys.iter().map(FrontendKey::family).collect::<BTreeSet<Family>>() {
            conntrack.connections(table_family(family), |connection| {
                found.count(keys, &connection, addresses);
            })?;
        }
        Ok(found)
    }

    fn count(
        &mut self,
        keys: &BTreeSet<FrontendKey>,
        connection: &Connection,
        addresses: &BTreeSet<IpAddr>,
    ) {
        let Some(protocol) = Protocol::from_number(connection.protocol) else { return };
        let (to, server) = (connection.original.destination, connection.reply.source);
        // The connection was not translated: the first packet came before the Service did.
        if to == server {
            return;
        }
        let by_address = FrontendKey::Address(to.ip(), protocol, to.port());
        let node_port = FrontendKey::NodePort(Family::of(to.ip()), protocol, to.port());
        let key = if keys.contains(&by_address) {
            by_address
        } else if keys.contains(&node_port) && addresses.contains(&to.ip()) {
            node_port
        } else {
            return;
        };
        self.0.entry((key, (server.ip(), server.port()))).or_default().count(connection);
    }

    /// Returns the connections from a frontend to an endpoint.
    pub(super) fn to(&self, key: FrontendKey, endpoint: (IpAddr, u16)) -> Tracked {
        self.0.get(&(key, endpoint)).copied().unwrap_or_default()
    }

    /// Returns the connections from a frontend to all endpoints but these.
    pub(super) fn to_others(&self, key: FrontendKey, endpoints: &[(IpAddr, u16)]) -> Tracked {
        let mut sum = Tracked::default();
        let others = self.0.iter().filter(|((own, to), _)| *own == key && !endpoints.contains(to));
        others.for_each(|(_, tracked)| sum += *tracked);
        sum
    }
}
