//! The functions that the kernel runs for packets at each hook (`NFNL_SUBSYS_HOOK`, Linux 5.14):
//! chains of nf_tables, legacy iptables, connection tracking, BPF programs and others.
//!
//! ```no_run
//! use nfnetlink::hooks::{Hooks, Listed};
//! use nfnetlink::nft::NfProto;
//!
//! const FORWARD: u32 = 2;
//! match Hooks::open()?.list(NfProto::Ip, FORWARD)? {
//!     Listed::Unsupported => println!("this kernel does not list its hooks"),
//!     Listed::Functions(functions) => {
//!         functions.iter().for_each(|it| println!("{} {:?}", it.priority, it.function));
//!     }
//! }
//! # Ok::<(), nfnetlink::Error>(())
//! ```

use nix::errno::Errno;

use crate::Error;
use crate::attr::{Attr, Attrs, put_be32};
use crate::message::put_netfilter_header;
use crate::nft::NfProto;
use crate::socket::{Bus, Request, Socket};

/// `include/uapi/linux/netfilter/nfnetlink.h` and `nfnetlink_hook.h`.
const NFNL_SUBSYS_HOOK: u16 = 12;
const NFNL_MSG_HOOK_GET: u16 = 0;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_PRIORITY: u16 = 2;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;
const NFNLA_HOOK_INFO_DESC: u16 = 1;
const NFNLA_HOOK_INFO_TYPE: u16 = 2;
/// The same attributes describe a chain and a flow table.
const NFNLA_CHAIN_TABLE: u16 = 1;
const NFNLA_CHAIN_FAMILY: u16 = 2;
const NFNLA_CHAIN_NAME: u16 = 3;
const NFNLA_HOOK_BPF_ID: u16 = 1;
const NFNL_HOOK_TYPE_NFTABLES: u32 = 1;
const NFNL_HOOK_TYPE_BPF: u32 = 2;
const NFNL_HOOK_TYPE_NFT_FLOWTABLE: u32 = 3;

/// The functions at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// The kernel has no such listing: older than Linux 5.14, or built without
    /// `NETFILTER_NETLINK_HOOK`.
    Unsupported,
    /// The functions, in the order in which the kernel runs them.
    Functions(Vec<HookFunction>),
}

/// A function that the kernel runs for packets at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookFunction {
    /// The number of the hook.
    pub hook: u32,
    /// The priority; the kernel runs lower ones first.
    pub priority: i32,
    /// The name of the function, such as `ipt_do_table`; `None` on a kernel without symbols.
    pub function: Option<String>,
    /// The module of the function; `None` if it is part of the kernel.
    pub module: Option<String>,
    /// The object on whose behalf the function runs, if the kernel says so.
    pub owner: Option<HookOwner>,
}

/// The object on whose behalf a function runs at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookOwner {
    /// A base chain of nf_tables. (Before Linux 5.15, the kernel cannot say which family.)
    Chain {
        /// The family of the table.
        family: NfProto,
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// A flow table of nf_tables.
    FlowTable {
        /// The family of the table.
        family: NfProto,
        /// The table.
        table: String,
        /// The name of the flow table.
        name: String,
    },
    /// A BPF program (Linux 6.4), by its number.
    Bpf(u32),
}

impl HookFunction {
    /// Reads a function from the attributes of its message.
    #[must_use]
    pub fn parse(attrs: &Attrs<'_>) -> Option<HookFunction> {
        let number = |kind| attrs.find(kind).and_then(|it| it.be32());
        let text = |kind| attrs.find(kind).and_then(|it| it.text()).map(str::to_owned);
        Some(HookFunction {
            hook: number(NFNLA_HOOK_HOOKNUM)?,
            priority: number(NFNLA_HOOK_PRIORITY)? as i32,
            function: text(NFNLA_HOOK_FUNCTION_NAME),
            module: text(NFNLA_HOOK_MODULE_NAME),
            owner: attrs.find(NFNLA_HOOK_CHAIN_INFO).and_then(|info| HookOwner::parse(&info)),
        })
    }
}

impl HookOwner {
    fn parse(info: &Attr<'_>) -> Option<HookOwner> {
        let info = info.children();
        let description = info.find(NFNLA_HOOK_INFO_DESC)?.children();
        let text = |kind| Some(description.find(kind)?.text()?.to_owned());
        let family = || {
            let family = description.find(NFNLA_CHAIN_FAMILY)?;
            Some(NfProto::from_number(*family.payload.first()?))
        };
        Some(match info.find(NFNLA_HOOK_INFO_TYPE)?.be32()? {
            NFNL_HOOK_TYPE_NFTABLES => HookOwner::Chain {
                family: family()?,
                table: text(NFNLA_CHAIN_TABLE)?,
                chain: text(NFNLA_CHAIN_NAME)?,
            },
            NFNL_HOOK_TYPE_NFT_FLOWTABLE => HookOwner::FlowTable {
                family: family()?,
                table: text(NFNLA_CHAIN_TABLE)?,
                name: text(NFNLA_CHAIN_NAME)?,
            },
            NFNL_HOOK_TYPE_BPF => HookOwner::Bpf(description.find(NFNLA_HOOK_BPF_ID)?.be32()?),
            _ => return None,
        })
    }
}

/// A netlink socket to the listing of hooks.
#[derive(Debug)]
pub struct Hooks(Socket);

impl Hooks {
    /// Opens the socket in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Hooks, Error> {
        Socket::open(Bus::Netfilter).map(Hooks)
    }

    /// Lists the functions at a hook. Families are those of packets: [`NfProto::Ip`],
    /// [`NfProto::Ip6`], [`NfProto::Arp`] and [`NfProto::Bridge`]. Chains of [`NfProto::Inet`]
    /// appear in both families of IP. The kernel may load `nfnetlink_hook` for that.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EPERM` without CAP_NET_ADMIN, [`Error::Interrupted`] if changes
    /// interrupt every attempt.
    pub fn list(&mut self, family: NfProto, hook: u32) -> Result<Listed, Error> {
        let kind = NFNL_SUBSYS_HOOK << 8 | NFNL_MSG_HOOK_GET;
        let list = Request::dump("list the functions at a hook", kind);
        let body = |body: &mut Vec<u8>| {
            put_netfilter_header(body, family.number(), 0);
            put_be32(body, NFNLA_HOOK_HOOKNUM, hook);
        };
        match self.0.list(list, body, |message| HookFunction::parse(&message.attrs())) {
            Ok(functions) => Ok(Listed::Functions(functions)),
            // The first is the answer of a kernel without this part of netlink, the others that of
            // one without this family or hook.
            Err(Error::Refused {
                errno: Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT,
                ..
            }) => Ok(Listed::Unsupported),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{nest, put, put_text};

    fn function(info: impl FnOnce(&mut Vec<u8>)) -> HookFunction {
        let mut body = Vec::new();
        put_text(&mut body, NFNLA_HOOK_MODULE_NAME, "nf_tables");
        put_text(&mut body, NFNLA_HOOK_FUNCTION_NAME, "nft_do_chain_inet");
        put_be32(&mut body, NFNLA_HOOK_HOOKNUM, 2);
        put_be32(&mut body, NFNLA_HOOK_PRIORITY, -150_i32 as u32);
        nest(&mut body, NFNLA_HOOK_CHAIN_INFO, info);
        HookFunction::parse(&Attrs::new(&body)).expect("a function")
    }

    fn described(kind: u32, description: impl FnOnce(&mut Vec<u8>)) -> impl FnOnce(&mut Vec<u8>) {
        move |info| {
            put_be32(info, NFNLA_HOOK_INFO_TYPE, kind);
            nest(info, NFNLA_HOOK_INFO_DESC, description);
        }
    }

    #[test]
    fn chain_of_a_function_is_read() {
        let names = |description: &mut Vec<u8>| {
            put_text(description, NFNLA_CHAIN_TABLE, "firewalld");
            put_text(description, NFNLA_CHAIN_NAME, "filter_FORWARD");
            put(description, NFNLA_CHAIN_FAMILY, &[NfProto::Inet.number()]);
        };
        let read = function(described(NFNL_HOOK_TYPE_NFTABLES, names));
        assert_eq!((read.hook, read.priority), (2, -150));
        assert_eq!(read.function.as_deref(), Some("nft_do_chain_inet"));
        assert_eq!(read.module.as_deref(), Some("nf_tables"));
        let (family, table) = (NfProto::Inet, "firewalld".to_owned());
        let chain = "filter_FORWARD".to_owned();
        assert_eq!(read.owner, Some(HookOwner::Chain { family, table: table.clone(), chain }));
        let read = function(described(NFNL_HOOK_TYPE_NFT_FLOWTABLE, names));
        let name = "filter_FORWARD".to_owned();
        assert_eq!(read.owner, Some(HookOwner::FlowTable { family, table, name }));
    }

    #[test]
    fn bpf_programs_and_unknown_owners_are_read() {
        let bpf = |description: &mut Vec<u8>| put_be32(description, NFNLA_HOOK_BPF_ID, 42);
        assert_eq!(function(described(NFNL_HOOK_TYPE_BPF, bpf)).owner, Some(HookOwner::Bpf(42)));
        assert_eq!(function(described(99, bpf)).owner, None);
        assert_eq!(function(described(NFNL_HOOK_TYPE_NFTABLES, |_| {})).owner, None);
    }
}
