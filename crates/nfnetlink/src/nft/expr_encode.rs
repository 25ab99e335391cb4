//! Encodes expressions of rules, by libnftnl.
//!
//! The `nftnl` crate's own expressions know one register and neither `numgen`, `fib` nor data
//! maps; its `Expression` trait is made for others to fill the gap.
#![allow(
    unsafe_code,
    reason = "libnftnl is a C library; all calls into it for expressions are here"
)]

use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

use super::expr::{JENKINS, RANDOM_FULLY};
use super::{Bitwise, Expr, Register, Wanted};

enum Value<'a> {
    U8(u8),
    U32(u32),
    U64(u64),
    Data(&'a [u8]),
    Text(&'a str),
}

impl nftnl::expr::Expression for Expr {
    fn to_expr(&self, _rule: &nftnl::Rule<'_>) -> NonNull<sys::nftnl_expr> {
        use Value::{Data, Text, U8, U32, U64};
        let number = |number: i32| U32(number as u32);
        match self {
            Expr::Value { bytes, to } => build(
                c"immediate",
                &[
                    (sys::NFTNL_EXPR_IMM_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_IMM_DATA, Data(bytes)),
                ],
            ),
            Expr::Verdict(verdict) => {
                let mut attributes = vec![
                    (sys::NFTNL_EXPR_IMM_DREG, number(libc::NFT_REG_VERDICT)),
                    (sys::NFTNL_EXPR_IMM_VERDICT, number(verdict.code())),
                ];
                let chain = verdict.chain();
                attributes.extend(chain.map(|chain| (sys::NFTNL_EXPR_IMM_CHAIN, Text(chain))));
                build(c"immediate", &attributes)
            }
            Expr::Payload { base, offset, length, to } => build(
                c"payload",
                &[
                    (sys::NFTNL_EXPR_PAYLOAD_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_PAYLOAD_BASE, number(*base)),
                    (sys::NFTNL_EXPR_PAYLOAD_OFFSET, U32(*offset)),
                    (sys::NFTNL_EXPR_PAYLOAD_LEN, U32(*length)),
                ],
            ),
            Expr::Meta { key, to } => build(
                c"meta",
                &[
                    (sys::NFTNL_EXPR_META_KEY, number(*key)),
                    (sys::NFTNL_EXPR_META_DREG, U32(to.raw())),
                ],
            ),
            Expr::SetMeta { key, from } => build(
                c"meta",
                &[
                    (sys::NFTNL_EXPR_META_KEY, number(*key)),
                    (sys::NFTNL_EXPR_META_SREG, U32(from.raw())),
                ],
            ),
            Expr::Ct { key, direction, to } => {
                let mut attributes = vec![
                    (sys::NFTNL_EXPR_CT_KEY, number(*key)),
                    (sys::NFTNL_EXPR_CT_DREG, U32(to.raw())),
                ];
                attributes.extend(direction.map(|it| (sys::NFTNL_EXPR_CT_DIR, U8(it))));
                build(c"ct", &attributes)
            }
            Expr::Compare { from, comparison, with } => build(
                c"cmp",
                &[
                    (sys::NFTNL_EXPR_CMP_SREG, U32(from.raw())),
                    (sys::NFTNL_EXPR_CMP_OP, number(*comparison as i32)),
                    (sys::NFTNL_EXPR_CMP_DATA, Data(with)),
                ],
            ),
            Expr::Bitwise { from, to, length, operation: Bitwise::Mask { mask, xor } } => build(
                c"bitwise",
                &[
                    (sys::NFTNL_EXPR_BITWISE_SREG, U32(from.raw())),
                    (sys::NFTNL_EXPR_BITWISE_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_BITWISE_LEN, U32(*length)),
                    (sys::NFTNL_EXPR_BITWISE_MASK, Data(mask)),
                    (sys::NFTNL_EXPR_BITWISE_XOR, Data(xor)),
                ],
            ),
            Expr::Lookup { set, key, wanted } => {
                let mut attributes = vec![
                    (sys::NFTNL_EXPR_LOOKUP_SREG, U32(key.raw())),
                    (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                ];
                attributes.push(match wanted {
                    Wanted::Member => (sys::NFTNL_EXPR_LOOKUP_FLAGS, U32(0)),
                    Wanted::NoMember => {
                        (sys::NFTNL_EXPR_LOOKUP_FLAGS, number(libc::NFT_LOOKUP_F_INV))
                    }
                    Wanted::Value(to) => (sys::NFTNL_EXPR_LOOKUP_DREG, U32(to.raw())),
                    Wanted::Verdict => (sys::NFTNL_EXPR_LOOKUP_DREG, number(libc::NFT_REG_VERDICT)),
                });
                build(c"lookup", &attributes)
            }
            Expr::Fib { result, flags, to } => build(
                c"fib",
                &[
                    (sys::NFTNL_EXPR_FIB_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_FIB_RESULT, U32(*result)),
                    (sys::NFTNL_EXPR_FIB_FLAGS, U32(*flags)),
                ],
            ),
            Expr::Number { modulus, random, to } => {
                let kind = if *random { libc::NFT_NG_RANDOM } else { libc::NFT_NG_INCREMENTAL };
                build(
                    c"numgen",
                    &[
                        (sys::NFTNL_EXPR_NG_DREG, U32(to.raw())),
                        (sys::NFTNL_EXPR_NG_MODULUS, U32(*modulus)),
                        (sys::NFTNL_EXPR_NG_TYPE, number(kind)),
                    ],
                )
            }
            Expr::Hash { key, length, modulus, seed, to } => build(
                c"hash",
                &[
                    (sys::NFTNL_EXPR_HASH_SREG, U32(key.raw())),
                    (sys::NFTNL_EXPR_HASH_DREG, U32(to.raw())),
                    (sys::NFTNL_EXPR_HASH_LEN, U32(*length)),
                    (sys::NFTNL_EXPR_HASH_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_HASH_SEED, U32(*seed)),
                    (sys::NFTNL_EXPR_HASH_TYPE, U32(JENKINS)),
                ],
            ),
            Expr::Update { set, key, data, timeout, renew } => {
                let op = if *renew { libc::NFT_DYNSET_OP_UPDATE } else { libc::NFT_DYNSET_OP_ADD };
                let mut attributes = vec![
                    (sys::NFTNL_EXPR_DYNSET_SREG_KEY, U32(key.raw())),
                    (sys::NFTNL_EXPR_DYNSET_OP, number(op)),
                    (sys::NFTNL_EXPR_DYNSET_TIMEOUT, U64(*timeout)),
                    (sys::NFTNL_EXPR_DYNSET_SET_NAME, Text(set)),
                ];
                let data = data.map(|data| (sys::NFTNL_EXPR_DYNSET_SREG_DATA, U32(data.raw())));
                attributes.extend(data);
                build(c"dynset", &attributes)
            }
            Expr::Object { kind, name } => build(
                c"objref",
                &[
                    (sys::NFTNL_EXPR_OBJREF_IMM_TYPE, U32(*kind)),
                    (sys::NFTNL_EXPR_OBJREF_IMM_NAME, Text(name)),
                ],
            ),
            Expr::Nat { source, family, address, port } => {
                let kind = if *source { libc::NFT_NAT_SNAT } else { libc::NFT_NAT_DNAT };
                let mut attributes = vec![
                    (sys::NFTNL_EXPR_NAT_TYPE, number(kind)),
                    (sys::NFTNL_EXPR_NAT_FAMILY, U32(*family)),
                ];
                let raw = |register: &Register| U32(register.raw());
                let address = address.as_ref().map(raw);
                attributes.extend(address.map(|it| (sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, it)));
                let port = port.as_ref().map(raw);
                attributes.extend(port.map(|it| (sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, it)));
                build(c"nat", &attributes)
            }
            Expr::Masquerade { fully_random } => {
                let flags = if *fully_random { RANDOM_FULLY } else { 0 };
                build(c"masq", &[(sys::NFTNL_EXPR_MASQ_FLAGS, U32(flags))])
            }
            Expr::Reject { kind, code } => build(
                c"reject",
                &[
                    (sys::NFTNL_EXPR_REJECT_TYPE, number(*kind)),
                    (sys::NFTNL_EXPR_REJECT_CODE, U8(*code)),
                ],
            ),
            Expr::Counter => counter(),
            // Others are only read. The kernel refuses a range without attributes (`EINVAL`).
            Expr::SetPayload { .. }
            | Expr::SetCt { .. }
            | Expr::Range { .. }
            | Expr::Bitwise { .. }
            | Expr::ByteOrder { .. }
            | Expr::Match(_)
            | Expr::Target(_)
            | Expr::Other(_) => build(c"range", &[]),
        }
    }
}
/// Returns a counter for every element of a set with `counter`.
pub(super) fn counter() -> NonNull<sys::nftnl_expr> {
    build(c"counter", &[])
}

/// Makes a libnftnl expression. The caller owns it; adding it to a rule or set hands it on.
fn build(kind: &CStr, attributes: &[(u32, Value<'_>)]) -> NonNull<sys::nftnl_expr> {
    // SAFETY: the name is NUL-terminated and only read during the call.
    let expr = unsafe { sys::nftnl_expr_alloc(kind.as_ptr()) };
    let Some(expr) = NonNull::new(expr) else {
        // Only out of memory gets here: the names above are those that libnftnl has. The standard
        // library aborts then too.
        std::process::abort();
    };
    for (attribute, value) in attributes {
        let attribute = *attribute as u16;
        match value {
            // SAFETY: the expression is alive and ours.
            Value::U8(value) => unsafe {
                sys::nftnl_expr_set_u8(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above.
            Value::U32(value) => unsafe {
                sys::nftnl_expr_set_u32(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above.
            Value::U64(value) => unsafe {
                sys::nftnl_expr_set_u64(expr.as_ptr(), attribute, *value);
            },
            // SAFETY: as above; libnftnl copies the bytes, whose length is given.
            Value::Data(bytes) => unsafe {
                sys::nftnl_expr_set(
                    expr.as_ptr(),
                    attribute,
                    bytes.as_ptr().cast(),
                    bytes.len() as u32,
                );
            },
            Value::Text(text) => {
                let text = c_string(text);
                // SAFETY: as above; libnftnl copies the NUL-terminated text.
                unsafe { sys::nftnl_expr_set_str(expr.as_ptr(), attribute, text.as_ptr()) };
            }
        }
        // libnftnl 1.2.9 ignores a value of another length than the attribute's; 1.2.4 does not.
        // SAFETY: as above.
        debug_assert!(unsafe { sys::nftnl_expr_is_set(expr.as_ptr(), attribute) });
    }
    expr
}

/// The text up to its first NUL; names of chains and sets have none.
pub(super) fn c_string(text: &str) -> CString {
    let end = text.bytes().position(|b| b == 0).unwrap_or(text.len());
    CString::new(&text.as_bytes()[..end]).unwrap_or_default()
}
