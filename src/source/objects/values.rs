//! Validates addresses, prefixes, ports and names by the rules of Kubernetes.
//!
//! Errors are reasons that follow a field and its value in a message.

use std::net::{IpAddr, Ipv4Addr};

use shunt_core::model::Protocol;

use crate::source::spanned_yaml::parse_ip;

/// The longest name of an object, which is that of a DNS name.
pub(super) const NAME_LENGTH: usize = 253;
const LABEL_LENGTH: usize = 63;

/// Parses an address that other hosts can reach, as Kubernetes requires for endpoints and external
/// IPs.
pub(super) fn remote_ip(text: &str) -> Result<IpAddr, String> {
    let address = parse_ip(text)?;
    match special(address) {
        Some(what) => Err(format!("{what}; other hosts cannot reach it")),
        None if is_link_local(address) => {
            Err("a link-local address; hosts beyond its link cannot reach it".into())
        }
        None => Ok(address),
    }
}

/// Parses an address for a Service or a load balancer. Link-local addresses are valid.
pub(super) fn service_ip(text: &str) -> Result<IpAddr, String> {
    let address = parse_ip(text)?;
    match special(address) {
        Some(what) => Err(format!("{what}; a Service cannot have it")),
        None => Ok(address),
    }
}

fn special(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("the broadcast address")
    } else {
        None
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Checks a port number: 1 to 65535.
pub(super) fn port(number: i64) -> Result<u16, &'static str> {
    match u16::try_from(number) {
        Ok(0) | Err(_) => Err("not a port number; write 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

/// Parses a transport protocol; the default is TCP.
pub(super) fn protocol(text: &str) -> Result<Protocol, &'static str> {
    match text {
        "TCP" | "" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        _ if matches!(&*text.to_ascii_uppercase(), "TCP" | "UDP" | "SCTP") => {
            Err("protocols are written in uppercase")
        }
        _ => Err("not a protocol of Services; write TCP, UDP or SCTP"),
    }
}

/// Checks a name of one or several labels with dots between them.
pub(super) fn dns_name(text: &str, most: usize) -> Result<(), String> {
    if text.len() > most {
        return Err(format!("longer than {most} characters"));
    }
    text.split('.').try_for_each(label_characters)
}

/// Checks a name of one label.
pub(super) fn dns_label(text: &str) -> Result<(), String> {
    if text.len() > LABEL_LENGTH {
        return Err(format!("longer than {LABEL_LENGTH} characters"));
    }
    label_characters(text)
}

fn label_characters(label: &str) -> Result<(), String> {
    let letter_or_digit = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    let ends_well = |b: Option<&u8>| b.is_some_and(|b| letter_or_digit(*b));
    if ends_well(bytes.first())
        && ends_well(bytes.last())
        && bytes.iter().all(|b| letter_or_digit(*b) || *b == b'-')
    {
        Ok(())
    } else {
        Err("not a DNS name: lowercase letters, digits and '-' in between".into())
    }
}
