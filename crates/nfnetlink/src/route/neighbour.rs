//! The link-layer addresses of neighbours, and whether they answer (`RTM_GETNEIGH`).

use std::fmt;
use std::net::IpAddr;

use nix::errno::Errno;

use super::list;
use super::lookup::put_ip;
use crate::attr;
use crate::message::Message;
use crate::socket::{Bus, Request, Socket};
use crate::{Error, Family};

/// The size of `struct ndmsg`, and the offsets of interface index and state.
const NEIGHBOUR_HEADER: usize = 12;
const INDEX: usize = 4;
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

impl fmt::Display for NeighbourState {
    /// Writes the word that `ip neighbour` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NeighbourState::Incomplete => "INCOMPLETE",
            NeighbourState::Reachable => "REACHABLE",
            NeighbourState::Stale => "STALE",
            NeighbourState::Delay => "DELAY",
            NeighbourState::Probe => "PROBE",
            NeighbourState::Failed => "FAILED",
            NeighbourState::NoArp => "NOARP",
            NeighbourState::Permanent => "PERMANENT",
            NeighbourState::Other(number) => return write!(f, "{number:#x}"),
        })
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
    let answer = Socket::open(Bus::Route)?.request(
        ask,
        |body| put_query(body, address, interface),
        |message| state = state_of(&message, address, interface),
    );
    match answer {
        Ok(()) => Ok(state),
        Err(Error::Refused { errno: Errno::ENOENT, .. }) => Ok(None),
        // Before Linux 5.0, the kernel only lists all of them.
        Err(Error::Refused { errno: Errno::EOPNOTSUPP, .. }) => listed(address, interface),
        Err(error) => Err(error),
    }
}

/// Finds the neighbour in a listing of all.
fn listed(address: IpAddr, interface: u32) -> Result<Option<NeighbourState>, Error> {
    let mut header = [0; NEIGHBOUR_HEADER];
    header[0] = Family::of(address).number();
    let found = list("list neighbours", libc::RTM_GETNEIGH, &header, |message| {
        state_of(&message, address, interface)
    });
    Ok(found?.pop())
}

fn put_query(body: &mut Vec<u8>, address: IpAddr, interface: u32) {
    body.extend_from_slice(&[Family::of(address).number(), 0, 0, 0]);
    body.extend_from_slice(&interface.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    put_ip(body, libc::NDA_DST, address);
}

/// Reads the state of this neighbour; `None` if the message is about another one.
pub(crate) fn state_of(
    message: &Message<'_>,
    address: IpAddr,
    interface: u32,
) -> Option<NeighbourState> {
    let header = message.payload.get(..NEIGHBOUR_HEADER)?;
    let index = u32::from_ne_bytes(*header.get(INDEX..)?.first_chunk()?);
    let state = u16::from_ne_bytes(*header.get(STATE..)?.first_chunk()?);
    let attrs = message.attrs_behind(NEIGHBOUR_HEADER);
    let of = attr::ip(attrs.find(libc::NDA_DST)?.payload)?;
    (index == interface && of == address).then(|| NeighbourState::from_number(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Older kernels only list neighbours; this one can do both.
    #[test]
    fn listing_gives_the_same_answer_as_the_query() -> anyhow::Result<()> {
        let netns = shunt_testbed::Netns::new()?;
        netns.ip("link add east type veth peer name west
            link set east up
            neigh add 192.0.2.16 dev east nud failed
            neigh add 192.0.2.17 dev west nud failed
            neigh add 2001:db8::17 dev east lladdr 02:00:00:00:00:17 nud permanent")?;
        netns.run(|| {
            let links = crate::route::links()?;
            for address in ["192.0.2.16", "192.0.2.17", "192.0.2.18", "2001:db8::17"] {
                let address = address.parse()?;
                for link in &links {
                    assert_eq!(listed(address, link.index)?, neighbour(address, link.index)?);
                }
            }
            let east = links.iter().find(|link| link.name == "east").map_or(0, |link| link.index);
            let state = listed("192.0.2.16".parse()?, east)?;
            assert_eq!(state, Some(NeighbourState::Failed));
            Ok(())
        })
    }
}
