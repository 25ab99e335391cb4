//! The timeouts of connection tracking for TCP connections to Services.
//!
//! An attempt that no endpoint answers ends after a second, before the client repeats its SYN
//! (RFC 6298), which is balanced anew then. The other timeouts are those of other connections.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// The object's name begins with this.
const PREFIX: &str = "tcp-";
/// The states in nft's words, in the order of the kernel (`CTA_TIMEOUT_TCP_*`), with the kernel's
/// timeouts in seconds, but for the first.
const STATES: [(&str, u32); 11] = [
    ("syn_sent", 1),
    ("syn_recv", 60),
    ("established", 432_000),
    ("fin_wait", 120),
    ("close_wait", 60),
    ("last_ack", 30),
    ("time_wait", 120),
    ("close", 10),
    ("syn_sent2", 120),
    ("retrans", 300),
    ("unack", 300),
];
/// The kernel multiplies seconds by at most 1000 ticks, in 32 bits.
const LONGEST: u32 = i32::MAX as u32 / 1000;

/// The timeouts in seconds, in the order of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TcpTimeouts([u32; 11]);

impl TcpTimeouts {
    /// Makes timeouts with these seconds by state, in nft's words; without a value, the kernel's own.
    #[must_use]
    pub fn with(seconds: impl Fn(&str) -> Option<u32>) -> TcpTimeouts {
        let mut timeouts = STATES.map(|(state, own)| seconds(state).unwrap_or(own).min(LONGEST));
        timeouts[0] = STATES[0].1;
        TcpTimeouts(timeouts)
    }

    /// Returns the seconds, in the order of the kernel.
    #[must_use]
    pub fn seconds(&self) -> &[u32; 11] {
        &self.0
    }

    /// Returns the name of the object: the kernel cannot change the timeouts of one, so that other
    /// timeouts are another object.
    #[must_use]
    pub fn name(&self) -> String {
        // FNV-1a.
        let bytes = self.0.iter().flat_map(|seconds| seconds.to_be_bytes());
        let hash = bytes
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        format!("{PREFIX}{hash:08x}")
    }

    /// Writes the object like nft.
    pub(super) fn write(&self, out: &mut String, family: &str) -> std::fmt::Result {
        let timeouts = STATES.iter().zip(self.0);
        let policy: Vec<String> =
            timeouts.map(|((state, _), seconds)| format!("{state} : {seconds}")).collect();
        writeln!(out, "\n\tct timeout {} {{", self.name())?;
        writeln!(out, "\t\tprotocol tcp;\n\t\tl3proto {family}")?;
        writeln!(out, "\t\tpolicy = {{ {} }}\n\t}}", policy.join(", "))
    }
}

impl From<[u32; 11]> for TcpTimeouts {
    fn from(seconds: [u32; 11]) -> TcpTimeouts {
        TcpTimeouts(seconds)
    }
}

impl Default for TcpTimeouts {
    fn default() -> TcpTimeouts {
        TcpTimeouts::with(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_timeouts_are_another_object_and_an_unanswered_syn_always_ends_after_a_second() {
        let default = TcpTimeouts::default();
        let longer = TcpTimeouts::with(|state| (state == "established").then_some(u32::MAX));
        assert_ne!(default.name(), longer.name());
        assert_eq!(longer.seconds()[2], 2_147_483);
        assert_eq!(TcpTimeouts::with(|_| Some(9)).seconds(), &[1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
    }
}
