//! Definitions of base chains, sets and maps.

pub use nftnl::{ChainType, Hook};

use super::TypeOf;
use super::uapi::{NFT_DATA_VERDICT, NFT_SET_CONCAT};

/// `NFT_TABLE_F_DORMANT`: no packet meets the base chains of the table.
pub const TABLE_DORMANT: u32 = 0x1;
/// `NFT_TABLE_F_OWNER`: only the socket that set it may modify the table.
pub const TABLE_OWNER: u32 = 0x2;
/// `NFT_TABLE_F_PERSIST` (Linux 6.9): the table outlives the socket that owns it.
pub const TABLE_PERSIST: u32 = 0x4;

/// The properties of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// The type, which limits the statements.
    pub kind: ChainType,
    /// The hook where the chain sees packets.
    pub hook: Hook,
    /// The priority among the chains of the hook; the kernel runs lower ones first.
    pub priority: i32,
}

/// The data of a map of verdicts: its type (`NFT_DATA_VERDICT`), without a length.
pub const VERDICTS: (u32, u32) = (NFT_DATA_VERDICT, 0);

/// The definition of a set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetType {
    /// nft's number of the key type: six bits per field.
    pub key_type: u32,
    /// The length of the key in bytes, each field padded to four.
    pub key_length: u32,
    /// nft's number of the data type of a map, six bits per field, and the length of the data in bytes,
    /// each field padded to four; `None` for a set.
    pub data: Option<(u32, u32)>,
    /// For a set of ranges: the length of each key field in bytes, without padding; 0 for no field.
    pub range_fields: Option<[u8; 4]>,
    /// True for a set to which packets add elements, which expire.
    pub learned: bool,
    /// True for a set whose elements may expire. Those of a learned set always may.
    pub expires: bool,
    /// The maximum number of elements; `None` for no limit. With a size, the kernel allocates the
    /// hash table at once and never resizes it.
    pub size: Option<u32>,
    /// True if every element counts packets and bytes.
    pub counter: bool,
    /// The `typeof` expressions, for types without a type number.
    pub type_of: Option<TypeOf>,
}

impl SetType {
    /// Returns the definition of a set of single keys, which only transactions change. Callers set
    /// other fields for other kinds of sets.
    #[must_use]
    pub const fn of(key_type: u32, key_length: u32) -> SetType {
        SetType {
            key_type,
            key_length,
            data: None,
            range_fields: None,
            learned: false,
            expires: false,
            size: None,
            counter: false,
            type_of: None,
        }
    }

    /// Returns the kernel's flags (`NFT_SET_*`) for this definition.
    pub(super) fn flags(&self) -> u32 {
        let map = if self.data.is_some() { libc::NFT_SET_MAP } else { 0 };
        let interval = libc::NFT_SET_INTERVAL as u32 | NFT_SET_CONCAT;
        let ranges = if self.range_fields.is_some() { interval } else { 0 };
        let learned = (libc::NFT_SET_EVAL | libc::NFT_SET_TIMEOUT) as u32;
        let learned = if self.learned { learned } else { 0 };
        let expires = if self.expires { libc::NFT_SET_TIMEOUT as u32 } else { 0 };
        map as u32 | ranges | learned | expires
    }
}
