//! The nftables generation number, asked for over netlink.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

const NLMSG_HEADER: usize = 16;
const NFGEN_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
const NFTA_GEN_ID: u16 = 1;

/// Asks the kernel for the generation of the calling thread's network namespace.
pub(crate) fn read() -> Result<u32> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    send(socket.as_raw_fd(), &request(), MsgFlags::empty())
        .context("cannot ask for the nftables generation")?;
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())
        .context("no answer to the question for the nftables generation")?;
    parse(&answer[..length])
}

fn request() -> Vec<u8> {
    let message_type = ((libc::NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_GETGEN) as u16;
    let mut message = Vec::with_capacity(NLMSG_HEADER + NFGEN_HEADER);
    message.extend(((NLMSG_HEADER + NFGEN_HEADER) as u32).to_ne_bytes());
    message.extend(message_type.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]); // sequence number, port
    message.extend([libc::AF_UNSPEC as u8, libc::NFNETLINK_V0 as u8, 0, 0]);
    message
}

fn parse(answer: &[u8]) -> Result<u32> {
    let mut rest = answer.get(NLMSG_HEADER + NFGEN_HEADER..).unwrap_or_default();
    while let [l0, l1, t0, t1, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = rest.get(ATTRIBUTE_HEADER..length) else {
            break;
        };
        if let (NFTA_GEN_ID, &[a, b, c, d]) = (u16::from_ne_bytes([t0, t1]), value) {
            return Ok(u32::from_be_bytes([a, b, c, d]));
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    bail!("the kernel's answer has no nftables generation: {answer:02x?}")
}
