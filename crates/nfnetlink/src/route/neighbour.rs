//! The link-layer addresses of neighbours, and whether they answer (`RTM_GETNEIGH`).

use std::net::IpAddr;

use nix::errno::Errno;

use super::lookup::put_ip;
use crate::message::Message;
use crate::socket::{Bus, NetlinkSocket, Request};
use crate::{Error, Family};

/// The offset of the state in `struct ndmsg`.
const STATE: usize = 8;

/// The state of a neighbour (`NUD_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeighbourState {
    /// The kernel has asked for the link-layer address, and waits for an answer.
    Incomplete,
    /// The neighbour has answered recently.
    Reachable,
    /// The link-layer address is known, and not confirmed recently. The next packet uses it.
    Stale,
    /// As [`Stale`](NeighbourState::Stale), and a packet has just used it.
    Delay,
    /// The kernel asks the neighbour, because nothing has confirmed the address.
    Probe,
    /// The neighbour has not answered.
    Failed,
    /// The link needs no link-layer addresses.
    NoArp,
    /// An administrator or another program has set the link-layer address.
    Permanent,
    /// No state, or an unknown one.
    Other(u16),
}

impl NeighbourState {
    fn from_number(number: u16) -> NeighbourState {
        match number {
            libc::NUD_INCOMPLETE => NeighbourState::Incomplete,
            libc::NUD_REACHABLE => NeighbourState::Reachable,
            libc::NUD_STALE => NeighbourState::Stale,
            libc::NUD_DELAY => NeighbourState::Delay,
            libc::NUD_PROBE => NeighbourState::Probe,
            libc::NUD_FAILED => NeighbourState::Failed,
            libc::NUD_NOARP => NeighbourState::NoArp,
            libc::NUD_PERMANENT => NeighbourState::Permanent,
            other => NeighbourState::Other(other),
        }
    }
}

/// Returns the state of a neighbour on an interface, in the network namespace of this thread;
/// `None` if the kernel has not had to reach it recently.
///
/// # Errors
/// If the kernel refuses the query, for example with `ENODEV` for an index without an interface.
pub fn neighbour(address: IpAddr, interface: u32) -> Result<Option<NeighbourState>, Error> {
    let ask = Request { name: "look up the neighbour", kind: libc::RTM_GETNEIGH, flags: 0 };
    let mut state = None;
    let answer = NetlinkSocket::open(Bus::Route)?.request(
        ask,
        |body| put_query(body, address, interface),
        |message| state = state_of(&message),
    );
    match answer {
        Ok(()) => Ok(state),
        Err(Error::Request { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn put_query(body: &mut Vec<u8>, address: IpAddr, interface: u32) {
    body.extend_from_slice(&[Family::of(address).number(), 0, 0, 0]);
    body.extend_from_slice(&interface.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    put_ip(body, libc::NDA_DST, address);
}

/// Reads the state of a neighbour.
pub(crate) fn state_of(message: &Message<'_>) -> Option<NeighbourState> {
    let state = message.payload.get(STATE..)?.first_chunk()?;
    Some(NeighbourState::from_number(u16::from_ne_bytes(*state)))
}
