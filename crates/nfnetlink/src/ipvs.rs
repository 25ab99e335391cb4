//! The virtual servers of IPVS and their real servers, by generic netlink.
//!
//! Source: `include/uapi/linux/ip_vs.h`.

use std::net::IpAddr;

use nix::errno::Errno;

use crate::attr::{Attr, Attrs, ip, nest, put};
use crate::generic::{Dump, Generic};
use crate::{Error, attr};

const FAMILY: &str = "IPVS";
const VERSION: u8 = 1;

const CMD_GET_SERVICE: u8 = 4;
const CMD_GET_DEST: u8 = 8;
const CMD_ATTR_SERVICE: u16 = 1;
const CMD_ATTR_DEST: u16 = 2;

const SVC_ATTR_AF: u16 = 1;
const SVC_ATTR_PROTOCOL: u16 = 2;
const SVC_ATTR_ADDR: u16 = 3;
const SVC_ATTR_PORT: u16 = 4;
const SVC_ATTR_FWMARK: u16 = 5;
const SVC_ATTR_SCHED_NAME: u16 = 6;
const SVC_ATTR_FLAGS: u16 = 7;
const SVC_ATTR_TIMEOUT: u16 = 8;

const DEST_ATTR_ADDR: u16 = 1;
const DEST_ATTR_PORT: u16 = 2;
const DEST_ATTR_WEIGHT: u16 = 4;
const DEST_ATTR_ADDR_FAMILY: u16 = 11;

/// `IP_VS_SVC_F_PERSISTENT`: a client returns to its real server.
const SVC_F_PERSISTENT: u32 = 1;

/// A virtual server with an address. Those for packet marks are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The address.
    pub address: IpAddr,
    /// The port; 0 for all ports.
    pub port: u16,
    /// The name of the scheduler, such as `rr`.
    pub scheduler: String,
    /// The time in seconds for which a client returns to its real server.
    pub persistence: Option<u32>,
    /// The real servers.
    pub destinations: Vec<Destination>,
}

/// A real server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The weight; 0 for a server without new connections.
    pub weight: u32,
}

/// Lists the virtual servers in the network namespace of this thread. The kernel may load the
/// module of IPVS for that; without the file `/proc/net/ip_vs` it is not loaded.
///
/// # Errors
/// [`Error::Refused`] with `EPERM` without CAP_NET_ADMIN; [`Error::Interrupted`] if servers changed
/// during the dump.
pub fn services() -> Result<Vec<Service>, Error> {
    let mut generic = Generic::open()?;
    let family = match generic.family(FAMILY) {
        Err(Error::Refused { errno: Errno::ENOENT, .. }) => return Ok(Vec::new()),
        family => family?,
    };
    let list =
        Dump { name: "list virtual servers", family, command: CMD_GET_SERVICE, version: VERSION };
    let mut found = Vec::new();
    generic.dump(
        list,
        |_| {},
        |message| {
            let attribute = message.attrs().find(CMD_ATTR_SERVICE);
            found.extend(attribute.and_then(|it| {
                let service = Service::parse(&it)?;
                Some((service, name_of(&it)))
            }));
        },
    )?;
    for (service, name) in &mut found {
        let list =
            Dump { name: "list real servers", family, command: CMD_GET_DEST, version: VERSION };
        generic.dump(
            list,
            |body| nest(body, CMD_ATTR_SERVICE, |body| body.extend_from_slice(name)),
            |message| {
                let attribute = message.attrs().find(CMD_ATTR_DEST);
                service.destinations.extend(
                    attribute.and_then(|it| Destination::parse(&it, service.address.is_ipv6())),
                );
            },
        )?;
    }
    Ok(found.into_iter().map(|(service, _)| service).collect())
}

/// Returns the attributes by which the kernel finds a virtual server.
fn name_of(service: &Attr<'_>) -> Vec<u8> {
    let mut name = Vec::new();
    for kind in [SVC_ATTR_AF, SVC_ATTR_PROTOCOL, SVC_ATTR_ADDR, SVC_ATTR_PORT] {
        if let Some(attribute) = service.children().find(kind) {
            put(&mut name, kind, attribute.payload);
        }
    }
    name
}

impl Service {
    /// Reads a virtual server without its real servers; `None` for one by packet mark.
    #[must_use]
    pub fn parse(service: &Attr<'_>) -> Option<Service> {
        let attrs = service.children();
        if attrs.find(SVC_ATTR_FWMARK).and_then(|a| native32(&a)).is_some_and(|mark| mark != 0) {
            return None;
        }
        let v6 = native16(&attrs, SVC_ATTR_AF)? == libc::AF_INET6 as u16;
        let flags = attrs.find(SVC_ATTR_FLAGS).and_then(|a| Some(*a.payload.first_chunk()?));
        let persistent = flags.map_or(0, u32::from_ne_bytes) & SVC_F_PERSISTENT != 0;
        let timeout = attrs.find(SVC_ATTR_TIMEOUT).and_then(|a| native32(&a));
        Some(Service {
            protocol: u8::try_from(native16(&attrs, SVC_ATTR_PROTOCOL)?).ok()?,
            address: address(&attrs.find(SVC_ATTR_ADDR)?, v6)?,
            port: network16(&attrs, SVC_ATTR_PORT)?,
            scheduler: attrs
                .find(SVC_ATTR_SCHED_NAME)
                .and_then(|a| a.text())
                .unwrap_or_default()
                .to_owned(),
            persistence: timeout.filter(|_| persistent),
            destinations: Vec::new(),
        })
    }
}

impl Destination {
    /// Reads a real server. `v6` is true if its virtual server has an IPv6 address, which counts on
    /// kernels that do not name the family of real servers.
    #[must_use]
    pub fn parse(destination: &Attr<'_>, v6: bool) -> Option<Destination> {
        let attrs = destination.children();
        let family = native16(&attrs, DEST_ATTR_ADDR_FAMILY).filter(|family| *family != 0);
        let v6 = family.map_or(v6, |family| family == libc::AF_INET6 as u16);
        Some(Destination {
            address: address(&attrs.find(DEST_ATTR_ADDR)?, v6)?,
            port: network16(&attrs, DEST_ATTR_PORT)?,
            weight: native32(&attrs.find(DEST_ATTR_WEIGHT)?)?,
        })
    }
}

/// Reads `union nf_inet_addr`, which has room for IPv6.
fn address(attribute: &Attr<'_>, v6: bool) -> Option<IpAddr> {
    ip(attribute.payload.get(..if v6 { 16 } else { 4 })?)
}

fn native16(attrs: &Attrs<'_>, kind: u16) -> Option<u16> {
    attrs.find(kind)?.payload.try_into().ok().map(u16::from_ne_bytes)
}

fn network16(attrs: &Attrs<'_>, kind: u16) -> Option<u16> {
    attrs.find(kind)?.payload.try_into().ok().map(u16::from_be_bytes)
}

fn native32(attribute: &attr::Attr<'_>) -> Option<u32> {
    attribute.payload.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::put_text;

    fn read<T>(write: impl FnOnce(&mut Vec<u8>), parse: impl Fn(&Attr<'_>) -> T) -> T {
        let mut buffer = Vec::new();
        nest(&mut buffer, 1, write);
        parse(&Attrs::new(&buffer).next().expect("one attribute"))
    }

    /// Writes a virtual server as `ip_vs_genl_fill_service` does.
    fn service(body: &mut Vec<u8>, v6: bool, flags: u32) {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u16;
        put(body, SVC_ATTR_AF, &family.to_ne_bytes());
        put(body, SVC_ATTR_PROTOCOL, &(libc::IPPROTO_TCP as u16).to_ne_bytes());
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[10, 96, 0, 10]);
        put(body, SVC_ATTR_ADDR, &address);
        put(body, SVC_ATTR_PORT, &443_u16.to_be_bytes());
        put_text(body, SVC_ATTR_SCHED_NAME, "rr");
        put(body, SVC_ATTR_FLAGS, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
        put(body, SVC_ATTR_TIMEOUT, &10_800_u32.to_ne_bytes());
    }

    #[test]
    fn virtual_servers_are_read() {
        let found = read(|body| service(body, false, SVC_F_PERSISTENT), Service::parse);
        let found = found.expect("a virtual server");
        assert_eq!((found.protocol, found.port), (6, 443));
        assert_eq!(found.address.to_string(), "10.96.0.10");
        assert_eq!((found.scheduler.as_str(), found.persistence), ("rr", Some(10_800)));
        // The kernel has a timeout without persistence, too.
        let found = read(|body| service(body, true, 0), Service::parse).expect("a virtual server");
        assert_eq!(found.address.to_string(), "a60:a::");
        assert_eq!(found.persistence, None);
    }

    #[test]
    fn virtual_servers_by_mark_are_left_out() {
        let marked = |body: &mut Vec<u8>| {
            put(body, SVC_ATTR_AF, &(libc::AF_INET as u16).to_ne_bytes());
            put(body, SVC_ATTR_FWMARK, &7_u32.to_ne_bytes());
        };
        assert_eq!(read(marked, Service::parse), None);
    }

    #[test]
    fn real_servers_are_read_with_the_family_of_their_own() {
        let destination = |family: Option<i32>| {
            move |body: &mut Vec<u8>| {
                let mut address = [0; 16];
                address[..4].copy_from_slice(&[10, 244, 0, 11]);
                put(body, DEST_ATTR_ADDR, &address);
                put(body, DEST_ATTR_PORT, &8080_u16.to_be_bytes());
                put(body, DEST_ATTR_WEIGHT, &3_u32.to_ne_bytes());
                if let Some(family) = family {
                    put(body, DEST_ATTR_ADDR_FAMILY, &(family as u16).to_ne_bytes());
                }
            }
        };
        for (family, v6, expected) in [
            (None, false, "10.244.0.11"),
            (Some(libc::AF_INET), true, "10.244.0.11"),
            (None, true, "af4:b::"),
        ] {
            let found = read(destination(family), |it| Destination::parse(it, v6));
            let found = found.expect("a real server");
            assert_eq!((found.port, found.weight), (8080, 3));
            assert_eq!(found.address.to_string(), expected, "{family:?} {v6}");
        }
    }

    #[test]
    fn short_attributes_are_no_servers() {
        let mut whole = Vec::new();
        service(&mut whole, false, 0);
        for length in 0..60 {
            let found = read(|body| body.extend_from_slice(&whole[..length]), Service::parse);
            assert!(found.is_none_or(|found| found.port == 443), "{length}");
        }
    }
}
