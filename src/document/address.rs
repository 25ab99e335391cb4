//! IP addresses and prefixes as people write them.
//!
//! Errors are reasons, ready to follow a field and its value in a message.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// An IP address, written without ambiguity.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            let v4 = address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
            Err(format!("an IPv4 address in the form of an IPv6 address; write {v4}"))
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

/// A prefix. Blanks around it are tolerated, and bits beyond its length are cut off.
pub fn parse_net(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let Some((address, length)) = text.split_once('/') else {
        return Err(match parse_ip(text) {
            Ok(address) => format!("has no length; write {}", IpNet::from(address)),
            Err(_) if text.is_empty() => "empty; write a prefix such as 10.0.0.0/8".into(),
            Err(_) => "not a prefix such as 10.0.0.0/8 or fd00::/8".into(),
        });
    };
    let address = parse_ip(address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let net = length.parse().ok().and_then(|length| IpNet::new(address, length).ok());
    net.map(|net| net.trunc())
        .ok_or_else(|| format!("{length:?} is not a prefix length from 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["10.0.0.1", "::1", "fe80::1", "0.0.0.0", "2001:db8::1"] {
            assert!(parse_ip(text).is_ok(), "{text}");
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
            assert!(parse_ip(text).unwrap_err().contains(reason), "{text}");
        }
    }

    #[test]
    fn prefixes() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            (" 10.1.2.3/8\t", "10.0.0.0/8"),
            ("::/0", "::/0"),
            ("2001:db8::1/64", "2001:db8::/64"),
        ] {
            assert_eq!(parse_net(text).map(|net| net.to_string()), Ok(expected.into()), "{text}");
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
            assert!(parse_net(text).unwrap_err().contains(reason), "{text}: {:?}", parse_net(text));
        }
    }
}
