//! The interfaces of a network namespace (`RTM_GETLINK`).

use super::lookup::number;
use super::{LINK_HEADER, list};
use crate::Error;
use crate::message::Message;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The number by which routes and packets name it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// True if an administrator has switched it on (`IFF_UP`).
    pub up: bool,
    /// True if it also has a carrier (`IFF_LOWER_UP`): the other end of a veth is up, too.
    pub carrier: bool,
    /// True for a loopback interface.
    pub loopback: bool,
    /// The kind of a virtual interface: `veth`, `bridge`, `vxlan`, ….
    pub kind: Option<String>,
    /// The index of the interface that it belongs to: the other end of a veth, the parent of a VLAN.
    /// If [`peer_namespace`](Link::peer_namespace) is present, the index counts in that namespace.
    pub peer: Option<u32>,
    /// The number that this namespace has for the namespace of the peer (`IFLA_LINK_NETNSID`).
    pub peer_namespace: Option<i32>,
    /// The index of the bridge or bond of which it is a port, or of its VRF.
    pub master: Option<u32>,
}

/// Lists the interfaces in the network namespace of this thread.
///
/// ```
/// let links = nfnetlink::route::links()?;
/// assert!(links.iter().any(|link| link.name == "lo" && link.loopback));
/// # Ok::<(), nfnetlink::Error>(())
/// ```
///
/// # Errors
/// If the kernel refuses the dump, or changes interrupt every attempt.
pub fn links() -> Result<Vec<Link>, Error> {
    list("list interfaces", libc::RTM_GETLINK, &[0; LINK_HEADER], |message| Link::parse(&message))
}

impl Link {
    pub(crate) fn parse(message: &Message<'_>) -> Option<Link> {
        let header = message.payload.get(..LINK_HEADER)?;
        let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let flags = word(8)?;
        let has = |flag: i32| flags & flag as u32 != 0;
        let attrs = message.attrs_behind(LINK_HEADER);
        let info = attrs.find(libc::IFLA_LINKINFO);
        let kind = info.and_then(|info| info.children().find(libc::IFLA_INFO_KIND));
        Some(Link {
            index: word(4)?,
            name: attrs.text(libc::IFLA_IFNAME)?.to_owned(),
            up: has(libc::IFF_UP),
            carrier: has(libc::IFF_LOWER_UP),
            loopback: has(libc::IFF_LOOPBACK),
            kind: kind.and_then(|kind| kind.text()).map(str::to_owned),
            // 0 says that there is a peer in a namespace without a number here, or none any more.
            peer: number(&attrs, libc::IFLA_LINK).filter(|index| *index != 0),
            peer_namespace: number(&attrs, libc::IFLA_LINK_NETNSID).map(|number| number as i32),
            master: number(&attrs, libc::IFLA_MASTER),
        })
    }
}
