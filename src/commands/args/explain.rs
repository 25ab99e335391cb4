//! Arguments of `shunt explain`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::{Format, ObjectArguments};

/// Arguments of `shunt explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Explain all frontends of this Service, or of one of its ports (name or number),
    /// instead of one destination.
    #[arg(
        value_name = "[NAMESPACE/]NAME[:PORT]",
        conflicts_with = "to",
        required_unless_present = "to"
    )]
    pub service: Option<String>,
    /// Explain a connection to this destination, such as `10.96.0.10:53/udp` or `[fd00::1]:80`. The
    /// protocol is tcp, udp, sctp or icmp; without one it is tcp.
    #[arg(long, value_name = "ADDRESS:PORT[/PROTOCOL]")]
    pub to: Option<Destination>,
    /// The address of the client. Without it, the node itself is the client.
    #[arg(long, value_name = "IP")]
    pub from: Option<IpAddr>,
    /// The network namespace of the client: a process ID in it, a name as in `ip netns`, or a path.
    #[arg(long, value_name = "PID|NAME|PATH", conflicts_with_all = ["manifests", "with", "at"])]
    pub netns: Option<PathBuf>,
    /// Also send one packet as the client (the node, or --netns) would, and follow it; `all`: until
    /// each endpoint got one.
    #[arg(
        long,
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "one",
        conflicts_with_all = ["manifests", "with", "at"]
    )]
    pub probe: Option<Probes>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub objects: ObjectArguments,
}

/// The endpoints that are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Probes {
    /// The endpoint that the kernel chooses.
    One,
    /// Each endpoint that the kernel may choose.
    All,
}

/// A destination: address, port and protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: IpAddr,
    /// The port; 0 for a protocol without ports.
    pub port: u16,
    /// The number of the IP protocol.
    pub protocol: u8,
}

impl std::str::FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        const EXAMPLE: &str =
            "write an address and a port, such as 10.96.0.10:53/udp or [fd00::1]:80";
        let (to, protocol) = text.rsplit_once('/').unwrap_or((text, "tcp"));
        let address = to.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let number = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => libc::IPPROTO_TCP,
            "udp" => libc::IPPROTO_UDP,
            "sctp" => libc::IPPROTO_SCTP,
            "icmp" | "icmpv6" | "ping" => match address {
                Some(address) if address.is_ipv6() => libc::IPPROTO_ICMPV6,
                _ => libc::IPPROTO_ICMP,
            },
            other => return Err(format!("{other} is not tcp, udp, sctp or icmp")),
        };
        let is_ping = matches!(number, libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6);
        let protocol = u8::try_from(number).map_err(|_| EXAMPLE.to_owned())?;
        if let Some(address) = address {
            return match is_ping {
                true => Ok(Destination { address, port: 0, protocol }),
                false => Err(format!("the port is missing: {EXAMPLE}")),
            };
        }
        let socket: std::net::SocketAddr = to.parse().map_err(|_| EXAMPLE.to_owned())?;
        Ok(Destination { address: socket.ip(), port: socket.port(), protocol })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed_and_mistakes_are_named() {
        for (text, address, port, protocol) in [
            ("10.96.0.10:53/udp", "10.96.0.10", 53, 17),
            ("10.96.0.10:80", "10.96.0.10", 80, 6),
            ("[fd00::1]:80/SCTP", "fd00::1", 80, 132),
            ("10.96.0.10/icmp", "10.96.0.10", 0, 1),
            ("fd00::1/ping", "fd00::1", 0, 58),
        ] {
            let expected = Destination { address: address.parse().unwrap(), port, protocol };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("10.96.0.10", "the port is missing"),
            ("10.96.0.10:80/http", "http is not tcp"),
            ("shop/checkout:80", "checkout:80 is not tcp"),
            ("10.96.0.10:99999", "write an address and a port"),
            ("", "write an address and a port"),
        ] {
            let error = text.parse::<Destination>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
