//! What a kernel may lack, so that the agent does without it.

use nfnetlink::nft::{
    BaseChain, Batch, ChainType, Error, Hook, Kernel, Refusal, TABLE_DORMANT, TableFamily,
};
use nix::errno::Errno;
use shunt_core::plan::TcpTimeouts;

use super::ownership::OWNED;

/// The names of tables that never exist: the last one is not even asked for.
const PROBE: &str = "shunt-probe";
const OWNED_PROBE: &str = "shunt-probe-owned";
const NOWHERE: &str = "shunt-probe-nowhere";

/// The abilities of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Tables can be owned and persist (Linux 6.9).
    pub owned_tables: bool,
    /// There is nf_tables for IPv6 (`CONFIG_NF_TABLES_IPV6`). Without it, Linux 6.8 refuses a table
    /// (`EOPNOTSUPP`), older kernels its base chains (`ENOENT`).
    pub ipv6: bool,
    /// Connections can have timeouts of their own (`CONFIG_NF_CONNTRACK_TIMEOUT`).
    pub timeouts: bool,
}

impl Abilities {
    /// Asks the kernel, by a transaction that always fails, since it deletes a missing table. That
    /// takes some milliseconds (the kernel waits for an RCU grace period).
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn ask(kernel: &mut dyn Kernel) -> Result<Abilities, Error> {
        let (v4, v6) = (TableFamily::Ip, TableFamily::Ip6);
        let mut batch = Batch::new(None);
        batch.add_table(v4, OWNED_PROBE, OWNED, PROBE);
        // Packets would meet the base chain of a table that is not dormant until it is refused.
        batch.add_table(v6, PROBE, TABLE_DORMANT, PROBE);
        let base = BaseChain { kind: ChainType::Nat, hook: Hook::PreRouting, priority: 0 };
        batch.add_chain(v6, PROBE, PROBE, Some(base));
        batch.add_table(v4, PROBE, TABLE_DORMANT, PROBE);
        batch.add_tcp_timeouts(v4, PROBE, PROBE, TcpTimeouts::default().seconds());
        batch.delete_table(v4, NOWHERE);
        let refusals = match kernel.commit(&batch.finish()) {
            Err(Error::Refused(refusals)) => refusals,
            Err(error) => return Err(error),
            Ok(()) => return Err(Error::Malformed("success for the deletion of a missing table")),
        };
        let of = |family, table: &str| {
            let is_of = |it: &&Refusal| it.family == Some(family) && it.table == table;
            // Whatever the reason for the first refusal is, the others may follow from it.
            refusals.iter().find(is_of).map(|refusal| refusal.errno)
        };
        if of(v4, NOWHERE).is_none() {
            return Err(Error::Refused(refusals));
        }
        Ok(Abilities {
            owned_tables: !matches!(of(v4, OWNED_PROBE), Some(Errno::EOPNOTSUPP | Errno::EINVAL)),
            ipv6: !matches!(
                of(v6, PROBE),
                Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::ENOENT)
            ),
            timeouts: !matches!(of(v4, PROBE), Some(Errno::EOPNOTSUPP | Errno::ENOENT)),
        })
    }
}
