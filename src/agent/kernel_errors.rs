//! Messages for errors of the kernel that name the missing module or capability.

use anyhow::anyhow;
use nfnetlink::nft;
use nix::errno::Errno;

/// Returns an error that names the missing module or capability for the usual causes.
pub(crate) fn explain(error: nft::Error) -> anyhow::Error {
    match error {
        nft::Error::Request { errno: Errno::EPERM | Errno::EACCES, .. } => not_allowed(),
        nft::Error::Request { errno: Errno::EINVAL | Errno::EOPNOTSUPP, .. } => anyhow!(
            "the kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables): load the module or \
             use another kernel"
        ),
        nft::Error::Open(source) => anyhow!(
            "the kernel has no netlink for netfilter (CONFIG_NETFILTER_NETLINK, module nfnetlink): \
             {source}"
        ),
        owned @ nft::Error::Owned { .. } => anyhow!("{owned}"),
        other => anyhow!("unexpected answer from nf_tables: {other}"),
    }
}

pub(crate) fn not_allowed() -> anyhow::Error {
    anyhow!(
        "no permission to modify nf_tables: CAP_NET_ADMIN is missing (run as root, or give the \
         container the capability NET_ADMIN)"
    )
}
