//! The attributes of expressions in rules.
//!
//! Source: `include/uapi/linux/netfilter/nf_tables.h` and `nf_tables_compat.h`.

pub(super) mod payload {
    pub(in crate::nft) const DREG: u16 = 1;
    pub(in crate::nft) const BASE: u16 = 2;
    pub(in crate::nft) const OFFSET: u16 = 3;
    pub(in crate::nft) const LENGTH: u16 = 4;
}

pub(super) mod meta {
    pub(in crate::nft) const DREG: u16 = 1;
    pub(in crate::nft) const KEY: u16 = 2;
    pub(in crate::nft) const SREG: u16 = 3;
}

pub(super) mod ct {
    pub(in crate::nft) const KEY: u16 = 2;
    pub(in crate::nft) const DIRECTION: u16 = 3;
}

pub(super) mod fib {
    pub(in crate::nft) const RESULT: u16 = 2;
    pub(in crate::nft) const FLAGS: u16 = 3;
}

pub(super) mod numgen {
    pub(in crate::nft) const MODULUS: u16 = 2;
    pub(in crate::nft) const TYPE: u16 = 3;
}

pub(super) mod hash {
    pub(in crate::nft) const SREG: u16 = 1;
    pub(in crate::nft) const DREG: u16 = 2;
    pub(in crate::nft) const LEN: u16 = 3;
    pub(in crate::nft) const MODULUS: u16 = 4;
    pub(in crate::nft) const SEED: u16 = 5;
    pub(in crate::nft) const TYPE: u16 = 7;
}

pub(super) mod bitwise {
    pub(in crate::nft) const SREG: u16 = 1;
    pub(in crate::nft) const DREG: u16 = 2;
    pub(in crate::nft) const MASK: u16 = 4;
    pub(in crate::nft) const XOR: u16 = 5;
}

pub(super) mod cmp {
    pub(in crate::nft) const SREG: u16 = 1;
    pub(in crate::nft) const OP: u16 = 2;
    pub(in crate::nft) const DATA: u16 = 3;
}

pub(super) mod lookup {
    pub(in crate::nft) const SET: u16 = 1;
    pub(in crate::nft) const SREG: u16 = 2;
    pub(in crate::nft) const DREG: u16 = 3;
    pub(in crate::nft) const FLAGS: u16 = 5;
}

pub(super) mod nat {
    pub(in crate::nft) const TYPE: u16 = 1;
    pub(in crate::nft) const ADDRESS: u16 = 3;
    pub(in crate::nft) const PORT: u16 = 5;
}

pub(super) mod reject {
    pub(in crate::nft) const TYPE: u16 = 1;
    pub(in crate::nft) const CODE: u16 = 2;
}

pub(super) mod masq {
    pub(in crate::nft) const FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
    pub(in crate::nft) const RANDOM_FULLY: u32 = 1 << 4;
}

pub(super) mod dynset {
    pub(in crate::nft) const SET: u16 = 1;
    pub(in crate::nft) const KEY: u16 = 4;
    pub(in crate::nft) const DATA: u16 = 5;
    pub(in crate::nft) const TIMEOUT: u16 = 6;
}

pub(super) mod compat {
    pub(in crate::nft) const NAME: u16 = 1;
    pub(in crate::nft) const REVISION: u16 = 2;
    pub(in crate::nft) const INFO: u16 = 3;
}
