//! The netlink sockets of a network namespace.

use std::collections::BTreeMap;
use std::io;

use super::Bus;

/// Returns the multicast groups of each socket of a protocol, by port number, in the network
/// namespace of this thread. A socket that has just been closed may be among them.
///
/// # Errors
/// If `/proc/thread-self/net/netlink` is not readable.
pub fn sockets(bus: Bus) -> io::Result<BTreeMap<u32, u32>> {
    const FILE: &str = "/proc/thread-self/net/netlink";
    /// The kernel writes a page at a time and counts the sockets before it (`netlink_seq_start`). So a
    /// reading may lack some while others close, and so may the next one.
    const MOST_READINGS: usize = 20;
    const READINGS_WITHOUT_NEWS: usize = 3;
    let mut found = BTreeMap::new();
    let mut without_news = 0;
    for _ in 0..MOST_READINGS {
        let list = std::fs::read_to_string(FILE).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read {FILE}: {error}"))
        })?;
        let before = found.len();
        found.extend(list.lines().filter_map(|line| parse(line, bus)));
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::socket::Socket;

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
        let first = Socket::open(Bus::Generic)?;
        let second = Socket::bind(Bus::Generic, first.port(), 0);
        let error = io::Error::from(second.expect_err("the number is taken"));
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(sockets(Bus::Generic)?.get(&first.port()), Some(&0));
        Ok(())
    }

    #[test]
    fn a_list_lacks_no_socket_while_others_come_and_go() -> Result<(), Box<dyn std::error::Error>> {
        let held: Vec<Socket> =
            (0..200).map(|_| Socket::open(Bus::Generic)).collect::<Result<_, _>>()?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _some: Vec<_> = (0..40).map(|_| Socket::open(Bus::Generic)).collect();
                }
            });
            let lists: io::Result<Vec<_>> = (0..100).map(|_| sockets(Bus::Generic)).collect();
            is_over.store(true, Ordering::Relaxed);
            for list in lists? {
                assert!(held.iter().all(|socket| list.contains_key(&socket.port())));
            }
            Ok(())
        })
    }
}
