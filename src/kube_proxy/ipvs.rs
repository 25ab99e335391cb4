//! Removal of leftovers of kube-proxy's IPVS mode, by generic netlink and rtnetlink.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nfnetlink::attr::{Attrs, put};
use nfnetlink::message::{messages, put_message};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::{IPVS_INTERFACE, IPVS_SERVICES, has_ipvs_interface, ipvs_services};

/// A timeout that the kernel does not reach: it answers within `sendto`.
const ANSWER_TIMEOUT: TimeVal = TimeVal::new(10, 0);

/// `include/uapi/linux/genetlink.h`.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_VERSION: u8 = 1;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// The size of `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;

/// `include/uapi/linux/ip_vs.h`.
const IPVS_GENL_NAME: &[u8] = b"IPVS\0";
const IPVS_GENL_VERSION: u8 = 1;
const IPVS_CMD_FLUSH: u8 = 17;

/// The size of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

/// The result of [`remove_ipvs`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedIpvs {
    /// The number of IPVS services.
    pub services: usize,
    /// True if the interface `kube-ipvs0` existed.
    pub interface: bool,
}

/// Removes all services of IPVS and the interface `kube-ipvs0` from the network namespace of this
/// thread, if the interface exists. Without it, services of IPVS belong to other programs.
///
/// # Errors
/// The error of the kernel. Services may be removed by then.
pub fn remove_ipvs() -> io::Result<RemovedIpvs> {
    if !has_ipvs_interface() {
        return Ok(RemovedIpvs::default());
    }
    // Asking for the family would load the module.
    let services = if std::fs::exists(IPVS_SERVICES)? {
        let services = ipvs_services();
        flush_services()?;
        services
    } else {
        0
    };
    delete_interface()?;
    Ok(RemovedIpvs { services, interface: true })
}

fn flush_services() -> io::Result<()> {
    let netlink = Netlink::open(SockProtocol::NetlinkGeneric)?;
    let mut family = None;
    netlink.request(
        GENL_ID_CTRL,
        false,
        &generic(CTRL_CMD_GETFAMILY, CTRL_VERSION, |body| {
            put(body, CTRL_ATTR_FAMILY_NAME, IPVS_GENL_NAME);
        }),
        |payload| {
            let attrs = Attrs::new(payload.get(GENERIC_HEADER..).unwrap_or(&[]));
            let bytes = attrs.find(CTRL_ATTR_FAMILY_ID).and_then(|id| id.payload.try_into().ok());
            family = bytes.map(u16::from_ne_bytes).or(family);
        },
    )?;
    let family = family.ok_or_else(|| {
        io::Error::other("the kernel did not return the generic netlink family of IPVS")
    })?;
    netlink.request(family, true, &generic(IPVS_CMD_FLUSH, IPVS_GENL_VERSION, |_| {}), |_| {})
}

fn delete_interface() -> io::Result<()> {
    let mut body = vec![0; LINK_HEADER];
    put(&mut body, libc::IFLA_IFNAME, format!("{IPVS_INTERFACE}\0").as_bytes());
    Netlink::open(SockProtocol::NetlinkRoute)?.request(libc::RTM_DELLINK, true, &body, |_| {})
}

fn generic(command: u8, version: u8, attributes: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = vec![command, version, 0, 0];
    attributes(&mut body);
    body
}

struct Netlink(OwnedFd);

impl Netlink {
    fn open(protocol: SockProtocol) -> io::Result<Netlink> {
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &ANSWER_TIMEOUT)?;
        Ok(Netlink(socket))
    }

    /// Sends a request and hands the payload of each answer to `each`. With `acknowledged`, the
    /// kernel confirms; otherwise it answers or refuses.
    fn request(
        &self,
        kind: u16,
        acknowledged: bool,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        const SEQUENCE: u32 = 1;
        let flags = if acknowledged { libc::NLM_F_ACK as u16 } else { 0 };
        let mut request = Vec::new();
        put_message(&mut request, kind, flags, SEQUENCE, body);
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.0.as_raw_fd(), &request, &kernel, MsgFlags::empty())?;
        let mut buffer = [0; 16 * 1024];
        loop {
            let length = match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                length => length?,
            };
            for message in messages(&buffer[..length]) {
                match message.verdict() {
                    Some(0) => return Ok(()),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => each(message.payload()),
                }
                if !acknowledged {
                    return Ok(());
                }
            }
        }
    }
}
