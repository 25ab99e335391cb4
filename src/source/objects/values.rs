//! Addresses, prefixes, ports and names: what Kubernetes takes for valid, and why something is not.
//!
//! Errors are reasons, ready to follow a field and its value in a message.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::document::At;
use crate::model::Protocol;

use super::findings::Findings;

/// The longest name of an object: that of a DNS name.
pub(super) const NAME_LENGTH: usize = 253;
const LABEL_LENGTH: usize = 63;

/// An IP address, written without ambiguity.
pub(super) fn ip(text: &str) -> Result<IpAddr, String> {
    match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            let v4 = address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
            Err(format!(
                "an IPv4 address in the form of an IPv6 address; write {v4}"
            ))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(not_an_ip(text)),
    }
}

fn not_an_ip(text: &str) -> String {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        "empty; write an IP address".into()
    } else if trimmed != text && trimmed.parse::<IpAddr>().is_ok() {
        format!("has blanks around it; write {trimmed}")
    } else if let Some(octet) = ambiguous_octet(text) {
        format!("{octet} has a leading zero, which some programs take for octal; write it without")
    } else if text.parse::<IpNet>().is_ok() {
        "a prefix; write a single address, without the length".into()
    } else if text.contains('%') {
        "has a zone; write the address without it".into()
    } else {
        "not an IP address".into()
    }
}

/// The first octet such as `010`, if the text is an IPv4 address apart from such octets.
fn ambiguous_octet(text: &str) -> Option<&str> {
    let octets = || text.split('.');
    let numbers = octets().all(|octet| octet.parse::<u8>().is_ok());
    let found = octets().find(|octet| octet.len() > 1 && octet.starts_with('0'))?;
    (numbers && octets().count() == 4).then_some(found)
}

/// An address that packets can be sent to from elsewhere: what Kubernetes asks of endpoints and of
/// external IPs.
pub(super) fn remote_ip(text: &str) -> Result<IpAddr, String> {
    let address = ip(text)?;
    match special(address) {
        Some(what) => Err(format!(
            "{what}; it does not name a host that could be reached"
        )),
        None if is_link_local(address) => {
            Err("a link-local address; it does not name a host beyond one link".into())
        }
        None => Ok(address),
    }
}

/// An address that can be that of a Service or a load balancer. Link-local ones can.
pub(super) fn service_ip(text: &str) -> Result<IpAddr, String> {
    let address = ip(text)?;
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

/// A prefix. Blanks around it are tolerated, and bits beyond its length are cut off.
pub(super) fn net(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let Some((address, length)) = text.split_once('/') else {
        return Err(match ip(text) {
            Ok(address) => format!("has no length; write {}", IpNet::from(address)),
            Err(_) if text.is_empty() => "empty; write a prefix such as 10.0.0.0/8".into(),
            Err(_) => "not a prefix such as 10.0.0.0/8 or fd00::/8".into(),
        });
    };
    let address = ip(address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let net = length
        .parse()
        .ok()
        .and_then(|length| IpNet::new(address, length).ok());
    net.map(|net| net.trunc())
        .ok_or_else(|| format!("{length:?} is not a prefix length from 0 to {most}"))
}

/// A list of prefixes, each once. A wrong one costs just that one.
pub(super) fn nets(
    texts: &[String],
    at: &At<'_>,
    effect: &str,
    findings: &mut Findings,
) -> Vec<IpNet> {
    let mut nets = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        match net(text) {
            Ok(net) if nets.contains(&net) => {}
            Ok(net) => nets.push(net),
            Err(reason) => findings.ignored(at.index(i), text, reason, effect),
        }
    }
    nets
}

/// A port number that packets can have.
pub(super) fn port(number: i64) -> Result<u16, &'static str> {
    match u16::try_from(number) {
        Ok(0) | Err(_) => Err("not a port number; write 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

/// A transport protocol; none means TCP.
pub(super) fn protocol(text: &str) -> Result<Protocol, &'static str> {
    match text {
        "TCP" | "" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        _ if matches!(&*text.to_ascii_uppercase(), "TCP" | "UDP" | "SCTP") => {
            Err("protocols are written in capitals")
        }
        _ => Err("not a protocol of Services; write TCP, UDP or SCTP"),
    }
}

/// A name of one or several labels with dots between them.
pub(super) fn dns_name(text: &str, most: usize) -> Result<(), String> {
    if text.len() > most {
        return Err(format!("longer than {most} characters"));
    }
    text.split('.').try_for_each(label_characters)
}

/// A name of one label.
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
        Err("not a DNS name: small letters, digits and '-' in between".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["10.0.0.1", "::1", "fe80::1", "0.0.0.0", "2001:db8::1"] {
            assert!(ip(text).is_ok(), "{text}");
        }
        for (text, reason) in [
            ("", "empty"),
            (" ", "empty"),
            (" 10.0.0.1", "blanks around it; write 10.0.0.1"),
            ("10.0.0.1\n", "blanks around it"),
            ("010.0.0.1", "010 has a leading zero"),
            ("10.0.0.00", "00 has a leading zero"),
            ("10.0.0", "not an IP address"),
            ("10.0.0.256", "not an IP address"),
            ("10.0.0.0/24", "a prefix"),
            ("fe80::1%eth0", "a zone"),
            ("::ffff:10.0.0.1", "write 10.0.0.1"),
            ("web.example", "not an IP address"),
        ] {
            assert!(ip(text).unwrap_err().contains(reason), "{text}");
        }
    }

    #[test]
    fn special_addresses() {
        for text in [
            "0.0.0.0",
            "127.0.0.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
        ] {
            assert!(remote_ip(text).is_err(), "{text}");
            assert!(service_ip(text).is_err(), "{text}");
        }
        for text in ["169.254.1.1", "fe80::1"] {
            assert!(remote_ip(text).is_err(), "{text}");
            assert!(service_ip(text).is_ok(), "{text}");
        }
        assert!(remote_ip("192.0.2.1").is_ok());
    }

    #[test]
    fn prefixes() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            (" 10.1.2.3/8\t", "10.0.0.0/8"),
            ("::/0", "::/0"),
            ("2001:db8::1/64", "2001:db8::/64"),
        ] {
            assert_eq!(
                net(text).map(|net| net.to_string()),
                Ok(expected.into()),
                "{text}"
            );
        }
        for (text, reason) in [
            ("", "empty"),
            ("10.0.0.1", "write 10.0.0.1/32"),
            ("fd00::1", "write fd00::1/128"),
            ("10.0.0.0/33", "\"33\" is not a prefix length from 0 to 32"),
            ("010.0.0.0/8", "leading zero"),
            ("::ffff:10.0.0.0/104", "write 10.0.0.0"),
            ("x/y", "not an IP address"),
        ] {
            assert!(
                net(text).unwrap_err().contains(reason),
                "{text}: {:?}",
                net(text)
            );
        }
    }

    #[test]
    fn ports_and_protocols() {
        for number in [0, -1, 65536, i64::MAX] {
            assert!(port(number).is_err(), "{number}");
        }
        assert_eq!(port(65535), Ok(65535));
        assert_eq!(protocol(""), Ok(Protocol::Tcp));
        assert_eq!(protocol("SCTP"), Ok(Protocol::Sctp));
        assert!(protocol("udp").unwrap_err().contains("capitals"));
        assert!(protocol("ICMP").is_err());
    }

    #[test]
    fn names() {
        let long = "a".repeat(254);
        for (name, good) in [
            ("web", true),
            ("1web", true),
            ("a.b-c.9", true),
            ("node-1.example", true),
        ]
        .into_iter()
        .chain([
            ("", false),
            ("-a", false),
            ("a-", false),
            ("a..b", false),
            ("Web", false),
        ])
        .chain([("a_b", false), ("é", false), (&*long, false)])
        {
            assert_eq!(dns_name(name, NAME_LENGTH).is_ok(), good, "{name}");
        }
        assert!(dns_label("a.b").is_err());
        assert!(dns_label(&long[..64]).is_err());
    }
}
