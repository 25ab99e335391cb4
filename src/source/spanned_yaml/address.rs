//! Parses IP addresses and prefixes leniently.
//!
//! Errors are reasons that follow a field and its value in a message.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an IP address. Ignores leading zeros of a part, like kube-proxy
/// (`netutils.ParseIPSloppy`).
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    match text.parse().or_else(|_| without_zeros(text).parse().map(IpAddr::V4)) {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            let v4 = address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
            Err(format!("an IPv4 address in the form of an IPv6 address; write {v4}"))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(not_an_ip(text)),
    }
}

/// Parses an IP address like [`parse_ip`], and also an IPv4 address in the form of an IPv6 address.
pub fn parse_ip_sloppy(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_canonical()),
        Err(_) => parse_ip(text),
    }
}

/// Returns a text without leading zeros in the parts between its dots.
fn without_zeros(text: &str) -> String {
    let short = |part: &str| match part.trim_start_matches('0') {
        "" => part.get(..1).unwrap_or_default().to_owned(),
        short => short.to_owned(),
    };
    text.split('.').map(short).collect::<Vec<_>>().join(".")
}

fn not_an_ip(text: &str) -> String {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        "empty; write an IP address".into()
    } else if trimmed != text && trimmed.parse::<IpAddr>().is_ok() {
        format!("has blanks around it; write {trimmed}")
    } else if text.parse::<IpNet>().is_ok() {
        "a prefix; write a single address, without the length".into()
    } else if text.contains('%') {
        "has a zone; write the address without it".into()
    } else {
        "not an IP address".into()
    }
}

/// Parses a prefix. Ignores blanks around it, and clears the bits beyond its length.
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
    let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
    let length_of_net = length.parse().ok().filter(|_| is_number);
    let net = length_of_net.and_then(|length| IpNet::new(address, length).ok());
    net.map(|net| net.trunc())
        .ok_or_else(|| format!("{length:?} is not a prefix length from 0 to {most}"))
}
