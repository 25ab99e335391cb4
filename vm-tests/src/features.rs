//! What this kernel can: asked by trying, each in a namespace of its own. Printed as lines
//! `feature NAME yes` or `no`; `xtask/src/vm/features.rs` knows the names.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use shunt_testbed::Netns;

use crate::runner::Test;

/// The probes, as a test: they must come to an answer.
pub(crate) const TESTS: [Test; 1] = [("features::each_is_there_or_is_not", probe_all)];

/// Subsystem and messages of nf_tables (`linux/netfilter/nfnetlink.h`, `nf_tables.h`).
const NF_TABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = NF_TABLES << 8;
const DESTROY_TABLE: u16 = NF_TABLES << 8 | 26;
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const OWNER: u32 = 0x2;
const PERSIST: u32 = 0x4;

/// Address families, as these have them.
const UNSPECIFIED: u8 = 0;
const IPV4: u8 = 2;

/// Of netlink (`linux/netlink.h`).
const ERROR: u16 = 2;
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const CREATE: u16 = 0x400;

/// A program for `nft` that a kernel with a feature takes.
const BY_NFT: [(&str, &str); 3] = [
    (
        "fib",
        "add chain ip t c { type filter hook prerouting priority 0; }
             add rule ip t c fib daddr type local accept",
    ),
    ("flow-tables", "add flowtable ip t f { hook ingress priority 0; devices = { lo }; }"),
    (
        "reject-in-prerouting",
        "add chain ip t c { type filter hook prerouting priority 0; }
             add rule ip t c reject",
    ),
];

fn probe_all() -> Result<()> {
    for (name, program) in BY_NFT {
        let ns = Netns::new()?;
        ns.ip("link set lo up")?;
        ns.nft("add table ip t")?;
        let refused = ns.nft(&format!("{program}\n")).err();
        say(name, refused.is_none());
    }
    say("owner", transaction(NEW_TABLE, Some(OWNER), false)?.0.is_none());
    say("persist", transaction(NEW_TABLE, Some(OWNER | PERSIST), false)?.0.is_none());
    say("destroy", transaction(DESTROY_TABLE, None, false)?.0.is_none());
    say("end-of-batch-ack", transaction(NEW_TABLE, None, true)?.1);
    say("element-time-out", element_time_out()?);
    Ok(())
}

fn say(feature: &str, there: bool) {
    println!("feature {feature} {}", if there { "yes" } else { "no" });
}

/// Whether adding an element again gives it another time-out.
fn element_time_out() -> Result<bool> {
    let ns = Netns::new()?;
    ns.nft(
        "add table ip t
         add set ip t s { type ipv4_addr; flags timeout; }
         add element ip t s { 192.0.2.1 timeout 1h }",
    )?;
    ns.nft("add element ip t s { 192.0.2.1 timeout 2h }")?;
    Ok(ns.output("nft", &["list", "set", "ip", "t", "s"])?.contains("timeout 2h"))
}

/// One transaction about a table that there is not: what the kernel refuses, and whether it answers
/// the end of the transaction, if it is asked to.
fn transaction(message: u16, flags: Option<u32>, ask: bool) -> Result<(Option<Errno>, bool)> {
    Netns::new()?.run(|| {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkNetFilter,
        )?;
        let mut table = attribute(TABLE_NAME, b"probe\0");
        table.extend(flags.iter().flat_map(|flags| attribute(TABLE_FLAGS, &flags.to_be_bytes())));
        let create = if message == NEW_TABLE { CREATE } else { 0 };
        let end = if ask { ACK } else { 0 };
        let batch = [
            encode(BATCH_BEGIN, 1, REQUEST, UNSPECIFIED, NF_TABLES, &[]),
            encode(message, 2, REQUEST | create, IPV4, 0, &table),
            encode(BATCH_END, 3, REQUEST | end, UNSPECIFIED, NF_TABLES, &[]),
        ]
        .concat();
        send(socket.as_raw_fd(), &batch, MsgFlags::empty()).context("cannot send a transaction")?;

        // Answers are there by the time that it is sent.
        let (mut refused, mut answered) = (None, false);
        let mut buffer = [0; 4096];
        loop {
            let length = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return Ok((refused, answered)),
                Err(error) => bail!("cannot read the answer: {error}"),
            };
            let mut rest = &buffer[..length];
            while let Some((sequence, errno)) = answer(rest) {
                match errno {
                    0 => answered |= sequence == 3,
                    errno => refused = Some(Errno::from_raw(-errno)),
                }
                let size = u32::from_ne_bytes(rest[..4].try_into()?) as usize;
                rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    })
}

/// The sequence number and the error of an answer.
fn answer(message: &[u8]) -> Option<(u32, i32)> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let sequence = u32::from_ne_bytes(message.get(8..12)?.try_into().ok()?);
    let error = i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?);
    (kind == ERROR).then_some((sequence, error))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = Vec::from((length as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

fn encode(
    kind: u16,
    sequence: u32,
    flags: u16,
    family: u8,
    resource: u16,
    attributes: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::from((20 + attributes.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}
