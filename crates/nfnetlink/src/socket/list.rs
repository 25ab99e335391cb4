//! The netlink sockets of a network namespace.

use std::collections::BTreeMap;
use std::io;

use super::Bus;

/// Returns the multicast groups of each socket of a protocol, by port number, in the network
/// namespace of this thread. A socket that has just been closed may be among them. While dozens are
/// opened and closed within each millisecond, one that stays open may be missing.
///
/// # Errors
/// If `/proc/thread-self/net/netlink` is not readable.
pub fn sockets(bus: Bus) -> io::Result<BTreeMap<u32, u32>> {
    const FILE: &str = "/proc/thread-self/net/netlink";
    merge(bus, || {
        std::fs::read_to_string(FILE)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot read {FILE}: {error}")))
    })
}

/// The kernel writes a page at a time and counts the sockets before it (`netlink_seq_start`). So a
/// reading lacks sockets if others before them close meanwhile, and so may the next one.
fn merge(bus: Bus, mut read: impl FnMut() -> io::Result<String>) -> io::Result<BTreeMap<u32, u32>> {
    const MOST_READINGS: usize = 20;
    const READINGS_WITHOUT_NEWS: usize = 3;
    let mut found = BTreeMap::new();
    let mut without_news = 0;
    for _ in 0..MOST_READINGS {
        let before = found.len();
        found.extend(read()?.lines().filter_map(|line| parse(line, bus)));
        without_news = if found.len() == before { without_news + 1 } else { 0 };
        if without_news == READINGS_WITHOUT_NEWS {
            break;
        }
    }
    Ok(found)
}

/// Reads port number and groups from a line of that file; `None` for other protocols.
fn parse(line: &str, bus: Bus) -> Option<(u32, u32)> {
    let mut fields = line.split_whitespace().skip(1);
    let number: i32 = fields.next()?.parse().ok()?;
    let port = fields.next()?.parse().ok()?;
    let groups = u32::from_str_radix(fields.next()?, 16).ok()?;
    (number == bus as i32).then_some((port, groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::NetlinkSocket;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "00000000a141e68c 12  1936195584 c0000000 0        0        0     2        0        3829776 ";
        assert_eq!(parse(line, Bus::Netfilter), Some((0x7368_0000, 0xc000_0000)));
        assert_eq!(parse(line, Bus::Route), None);
        for other in [
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode",
            "",
        ] {
            assert_eq!(parse(other, Bus::Netfilter), None);
        }
    }

    #[test]
    fn port_numbers_are_given_once() -> Result<(), Box<dyn std::error::Error>> {
        let first = NetlinkSocket::open(Bus::Generic)?;
        let second = NetlinkSocket::bind(Bus::Generic, first.port(), 0);
        let error = io::Error::from(second.expect_err("the number is taken"));
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(sockets(Bus::Generic)?.get(&first.port()), Some(&0));
        Ok(())
    }

    #[test]
    fn a_socket_that_some_readings_lack_is_listed() -> io::Result<()> {
        let reading = |ports: &[u32]| -> String {
            ports.iter().map(|port| format!("0 {} {port} 1\n", Bus::Generic as i32)).collect()
        };
        let torn = [reading(&[1, 2]), reading(&[1]), reading(&[1]), reading(&[1, 3])];
        let mut readings = torn.into_iter().chain(std::iter::repeat(reading(&[1, 2])));
        let found = merge(Bus::Generic, || Ok(readings.next().unwrap_or_default()))?;
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [1, 2, 3]);
        Ok(())
    }
}
