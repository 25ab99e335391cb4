//! The two families of addresses.

use std::fmt;
use std::net::IpAddr;

/// A family of addresses, and of the tables that translate them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: `table ip`.
    Ip,
    /// IPv6: `table ip6`.
    Ip6,
}

impl Family {
    /// Returns the family's number in messages (`NFPROTO_*`, which is `AF_*` for these two).
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Family::Ip => libc::NFPROTO_IPV4 as u8,
            Family::Ip6 => libc::NFPROTO_IPV6 as u8,
        }
    }

    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
    }

    pub(crate) fn from_number(number: u8) -> Option<Family> {
        [Family::Ip, Family::Ip6].into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
        })
    }
}
