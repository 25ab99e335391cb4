//! nf_tables by netlink: typed objects in, one transaction out, and the dump of what is there.
//!
//! Owns: messages ([`message`]) and attributes ([`attr`]) as all parts of netlink have them, and the
//! conversation with nf_tables ([`nft`]); and the chains of legacy iptables, which are not in nf_tables
//! ([`xtables`]).
//!
//! Must not know: Kubernetes, Services, or which tables and sets exist.
//!
//! Of the crates of the agent, this one alone contains `unsafe`: the calls into libnftnl, what the netlink socket
//! needs, and the one call to legacy iptables, each with its reason.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod attr;
pub mod message;
pub mod nft;
pub mod xtables;
