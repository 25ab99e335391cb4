//! What kube-proxy's IPVS mode leaves, on a kernel that has IPVS.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use shunt_testbed::Netns;

use crate::node::agent_binary;
use crate::runner::Test;

pub(crate) const TESTS: [Test; 2] = [
    ("ipvs::services_of_another_program_stay", of_another_program),
    ("ipvs::cleanup_removes_services_and_interface_of_kube_proxy", of_kube_proxy),
];

/// `include/uapi/linux/genetlink.h` and `include/uapi/linux/ip_vs.h`.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Where an answer of the controller that names a family has its number: it is the second attribute,
/// after `CTRL_ATTR_FAMILY_NAME` with `IPVS`.
const FAMILY_ID: std::ops::Range<usize> = 36..38;
const IPVS_CMD_NEW_SERVICE: u8 = 1;
const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const NLA_F_NESTED: u16 = 0x8000;
const AF_INET: u16 = 2;
const TCP: u16 = 6;

/// A namespace on a kernel with IPVS. The size of connection tracking's table, which the kernel was
/// booted with, is refused in other namespaces than the first one.
fn namespace() -> Result<Netns> {
    let modprobe = Command::new("modprobe").arg("ip_vs").status()?;
    ensure!(modprobe.success(), "this kernel has no IPVS");
    Netns::new()
}

/// Adds as many services as there are ports.
fn add_services(ports: &[u16]) -> Result<()> {
    let mut name = Vec::new();
    attribute(&mut name, CTRL_ATTR_FAMILY_NAME, b"IPVS\0");
    let answer = ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0, &name)?;
    let family = answer.get(FAMILY_ID).context("no family")?;
    let family = u16::from_ne_bytes(family.try_into()?);
    for port in ports {
        let mut service = Vec::new();
        attribute(&mut service, 1, &AF_INET.to_ne_bytes());
        attribute(&mut service, 2, &TCP.to_ne_bytes());
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[10, 96, 0, 1]);
        attribute(&mut service, 3, &address);
        attribute(&mut service, 4, &port.to_be_bytes());
        attribute(&mut service, 6, b"rr\0");
        // Flags and their mask.
        attribute(&mut service, 7, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        attribute(&mut service, 8, &0_u32.to_ne_bytes());
        attribute(&mut service, 9, &u32::MAX.to_ne_bytes());
        let mut body = Vec::new();
        attribute(&mut body, IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, &service);
        ask(family, IPVS_CMD_NEW_SERVICE, NLM_F_ACK, &body)?;
    }
    Ok(())
}

fn attribute(buffer: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    buffer.extend(((4 + payload.len()) as u16).to_ne_bytes());
    buffer.extend(kind.to_ne_bytes());
    buffer.extend(payload);
    buffer.resize(buffer.len().next_multiple_of(4), 0);
}

/// Sends a message of generic netlink; the answer, which is no refusal.
fn ask(family: u16, command: u8, flags: u16, attributes: &[u8]) -> Result<Vec<u8>> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkGeneric,
    )?;
    let mut message = Vec::new();
    message.extend(((20 + attributes.len()) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = vec![0; 8192];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(length);
    let kind = u16::from_ne_bytes(answer.get(4..6).context("no answer")?.try_into()?);
    if kind == NLMSG_ERROR {
        let error = i32::from_ne_bytes(answer.get(16..20).context("no error")?.try_into()?);
        ensure!(error == 0, "command {command} of family {family} is refused: {error}");
    }
    Ok(answer)
}

/// The services, a line each.
fn services() -> Result<usize> {
    let text = fs::read_to_string("/proc/thread-self/net/ip_vs")?;
    Ok(text.lines().filter(|line| line.starts_with("TCP ")).count())
}

fn cleanup(ns: &Netns) -> Result<String> {
    let output = Command::new(agent_binary()?)
        .args(["cleanup", "--kube-proxy", "--netns"])
        .arg(ns.path())
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{log}");
    Ok(log)
}

fn of_kube_proxy() -> Result<()> {
    let ns = namespace()?;
    ns.run(|| add_services(&[80, 443]))?;
    ns.ip("link add kube-ipvs0 type dummy\naddr add 10.96.0.1/32 dev kube-ipvs0")?;
    ensure!(ns.run(services)? == 2, "the services are not there");
    let log = cleanup(&ns)?;
    ensure!(log.contains("ipvs_interface: true, ipvs_services: 2"), "{log}");
    ensure!(ns.run(services)? == 0, "services are left\n{log}");
    let links = ns.output("ip", &["link"])?;
    ensure!(!links.contains("kube-ipvs0"), "{links}\n{log}");
    let log = cleanup(&ns)?;
    ensure!(log.contains("nothing to remove"), "{log}");
    Ok(())
}

fn of_another_program() -> Result<()> {
    let ns = namespace()?;
    ns.run(|| add_services(&[80]))?;
    let log = cleanup(&ns)?;
    ensure!(log.contains("nothing to remove"), "{log}");
    ensure!(ns.run(services)? == 1, "the service is gone\n{log}");
    Ok(())
}
