//! Arguments of `shunt trace`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use shunt_core::model::Protocol;

use super::{Destination, Format, Here};
use crate::config::GoDuration;

/// Arguments of `shunt trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// Trace packets to this destination, as the client sends them; the protocol is tcp, udp or
    /// sctp.
    #[arg(long, value_name = "ADDRESS:PORT[/PROTOCOL]", value_parser = destination)]
    pub to: (SocketAddr, Protocol),
    /// Trace only packets from this source address.
    #[arg(long, value_name = "IP")]
    pub from: Option<IpAddr>,
    /// End after this many connections.
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub count: u32,
    /// End after this time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub timeout: Duration,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub here: Here,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = GoDuration::parse(text)?.get().filter(|time| !time.is_zero());
    time.ok_or_else(|| "must be longer than zero".to_owned())
}

fn destination(text: &str) -> Result<(SocketAddr, Protocol), String> {
    let Destination { address, port, protocol } = text.parse()?;
    let protocol = Protocol::from_number(protocol)
        .ok_or_else(|| "only tcp, udp and sctp can be traced".to_owned())?;
    Ok((SocketAddr::new(address, port), protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed() {
        for (text, expected) in [
            ("10.96.0.10:80", Some(("10.96.0.10:80", Protocol::Tcp))),
            ("10.96.0.10:53/UDP", Some(("10.96.0.10:53", Protocol::Udp))),
            ("[fd00::a]:80/sctp", Some(("[fd00::a]:80", Protocol::Sctp))),
            ("10.96.0.10", None),
            ("fd00::a:80", None),
            ("10.96.0.10:80/icmp", None),
            ("checkout:80", None),
        ] {
            let expected = expected.map(|(address, protocol)| {
                (address.parse::<SocketAddr>().expect("an address"), protocol)
            });
            assert_eq!(destination(text).ok(), expected, "{text}");
        }
        assert!(timeout("0s").is_err() && timeout("1m").is_ok());
    }
}
