//! Definitions of base chains, sets and maps.

use super::TypeOf;
use super::uapi::NFT_SET_CONCAT;

/// `NFT_TABLE_F_OWNER`: only the socket that set it may write to the table.
pub const TABLE_OWNER: u32 = 0x2;
/// `NFT_TABLE_F_PERSIST` (kernel 6.9): the table outlives the socket that owns it.
pub const TABLE_PERSIST: u32 = 0x4;

/// Where a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that arrive, before routing.
    Prerouting,
    /// Packets for the node itself.
    Input,
    /// Packets that pass through.
    Forward,
    /// Packets that the node itself sends.
    Output,
    /// Packets that leave, after routing.
    Postrouting,
}

impl Hook {
    pub(super) fn raw(self) -> nftnl::Hook {
        match self {
            Hook::Prerouting => nftnl::Hook::PreRouting,
            Hook::Input => nftnl::Hook::In,
            Hook::Forward => nftnl::Hook::Forward,
            Hook::Output => nftnl::Hook::Out,
            Hook::Postrouting => nftnl::Hook::PostRouting,
        }
    }
}

impl Hook {
    /// The hook's number (`NF_INET_*`).
    #[must_use]
    pub fn number(self) -> u32 {
        self.raw() as u32
    }
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Accept, drop, reject, mark.
    Filter,
    /// Translate addresses; sees the first packet of a connection only.
    Nat,
}

impl ChainKind {
    /// The kernel's name of it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        }
    }

    pub(super) fn raw(self) -> nftnl::ChainType {
        match self {
            ChainKind::Filter => nftnl::ChainType::Filter,
            ChainKind::Nat => nftnl::ChainType::Nat,
        }
    }
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// What it may do.
    pub kind: ChainKind,
    /// Where it sees packets.
    pub hook: Hook,
    /// Its place among the chains of that hook; lower comes first.
    pub priority: i32,
}

/// The right side of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetData {
    /// Verdicts.
    Verdict,
    /// Bytes.
    Value {
        /// nft's type number: six bits per field.
        type_id: u32,
        /// Length in bytes, each field padded to four.
        length: u32,
    },
}

/// The definition of a set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetType {
    /// nft's number of the key's type: six bits per field.
    pub key_type: u32,
    /// Length of the key in bytes, each field padded to four.
    pub key_length: u32,
    /// What a map answers; `None` for a set.
    pub data: Option<SetData>,
    /// For a set of ranges: the length of each field of the key in bytes, not padded; 0 for none.
    pub range_fields: Option<[u8; 4]>,
    /// Packets add elements, which time out: how many at the most.
    pub learned: Option<u32>,
    /// Every element counts packets and bytes.
    pub counter: bool,
    /// For types that the numbers cannot express.
    pub type_of: Option<TypeOf>,
}

impl SetType {
    /// Returns the definition of a set of single keys, which transactions alone change. Other kinds
    /// are this one with another field.
    #[must_use]
    pub const fn of(key_type: u32, key_length: u32) -> SetType {
        SetType {
            key_type,
            key_length,
            data: None,
            range_fields: None,
            learned: None,
            counter: false,
            type_of: None,
        }
    }

    /// The kernel's flags (`NFT_SET_*`) for this definition.
    pub(super) fn flags(&self) -> u32 {
        let map = if self.data.is_some() { libc::NFT_SET_MAP } else { 0 };
        let interval = libc::NFT_SET_INTERVAL as u32 | NFT_SET_CONCAT;
        let ranges = if self.range_fields.is_some() { interval } else { 0 };
        let learned = (libc::NFT_SET_EVAL | libc::NFT_SET_TIMEOUT) as u32;
        let learned = if self.learned.is_some() { learned } else { 0 };
        map as u32 | ranges | learned
    }
}
