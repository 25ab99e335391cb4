//! Expressions of rules, encoded by libnftnl and decoded here: libnftnl would give up a rule with an
//! expression that it does not know.
//!
//! One table has both numbers of each field. The `nftnl` crate's own expressions know one register and
//! neither `numgen`, `fib` nor data maps; its `Expression` trait is made for others to fill the gap.
#![allow(
    unsafe_code,
    reason = "libnftnl is a C library; all calls into it for expressions are here"
)]

use std::ffi::CString;
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

use super::expr::{JENKINS, RANDOM_FULLY};
use super::uapi::{NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME};
use super::{Bitwise, Comparison, Expr, Extension, Register, Verdict, Wanted};
use crate::attr::{Attr, Attrs};

/// Attributes by libnftnl's numbers, with the bytes of their values.
type Attributes = Vec<(u32, Vec<u8>)>;

/// A field of an expression.
trait Field: Sized {
    /// Reads the field from the attribute with the kernel's number.
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<Self>;

    /// Adds the attribute with libnftnl's number.
    fn write(&self, nftnl: u32, to: &mut Attributes);
}

/// Makes the table into code: the name of an expression, and its fields with the kernel's number
/// (`enum nft_*_attributes` of `linux/netfilter/nf_tables.h`), that of libnftnl, and the value that a
/// missing attribute means. The first expression of that name whose fields are there is the one.
macro_rules! expressions {
    ($($name:literal $variant:ident {
        $($field:ident: $kernel:literal $nftnl:ident $(or $default:literal)?),*
    })*) => {
        impl Expr {
            /// Returns the kernel's name of the expression.
            pub(super) fn name(&self) -> &str {
                match self {
                    $(Expr::$variant { .. } => $name,)*
                    Expr::Verdict(_) => "immediate",
                    Expr::Masquerade { .. } => "masq",
                    Expr::Counter => "counter",
                    Expr::Match(_) => "match",
                    Expr::Target(_) => "target",
                    Expr::Other(name) => name,
                }
            }

            fn read_fields(name: &str, attrs: &Attrs<'_>) -> Option<Expr> {
                $(if name == $name {
                    let read = || Some(Expr::$variant {
                        $($field: Field::read(attrs, $kernel)$(.or(Some($default)))??),*
                    });
                    if let Some(read) = read() {
                        return Some(read);
                    }
                })*
                None
            }

            fn write_fields(&self, to: &mut Attributes) {
                match self {
                    $(Expr::$variant { $($field),* } => {
                        $($field.write(sys::$nftnl, to);)*
                    })*
                    _ => {}
                }
            }
        }
    };
}

expressions! {
    "immediate" Value { bytes: 2 NFTNL_EXPR_IMM_DATA, to: 1 NFTNL_EXPR_IMM_DREG }
    "payload" Payload {
        to: 1 NFTNL_EXPR_PAYLOAD_DREG, base: 2 NFTNL_EXPR_PAYLOAD_BASE,
        offset: 3 NFTNL_EXPR_PAYLOAD_OFFSET, length: 4 NFTNL_EXPR_PAYLOAD_LEN
    }
    "payload" SetPayload {
        from: 5 NFTNL_EXPR_PAYLOAD_SREG, base: 2 NFTNL_EXPR_PAYLOAD_BASE,
        offset: 3 NFTNL_EXPR_PAYLOAD_OFFSET, length: 4 NFTNL_EXPR_PAYLOAD_LEN
    }
    "meta" Meta { key: 2 NFTNL_EXPR_META_KEY, to: 1 NFTNL_EXPR_META_DREG }
    "meta" SetMeta { key: 2 NFTNL_EXPR_META_KEY, from: 3 NFTNL_EXPR_META_SREG }
    "ct" Ct { key: 2 NFTNL_EXPR_CT_KEY, direction: 3 NFTNL_EXPR_CT_DIR, to: 1 NFTNL_EXPR_CT_DREG }
    "ct" SetCt { key: 2 NFTNL_EXPR_CT_KEY, from: 4 NFTNL_EXPR_CT_SREG }
    "cmp" Compare {
        from: 1 NFTNL_EXPR_CMP_SREG, comparison: 2 NFTNL_EXPR_CMP_OP, with: 3 NFTNL_EXPR_CMP_DATA
    }
    "range" Range {
        from: 1 NFTNL_EXPR_RANGE_SREG, negate: 2 NFTNL_EXPR_RANGE_OP,
        first: 3 NFTNL_EXPR_RANGE_FROM_DATA, last: 4 NFTNL_EXPR_RANGE_TO_DATA
    }
    "bitwise" Bitwise {
        from: 1 NFTNL_EXPR_BITWISE_SREG, to: 2 NFTNL_EXPR_BITWISE_DREG,
        length: 3 NFTNL_EXPR_BITWISE_LEN, operation: 4 NFTNL_EXPR_BITWISE_MASK
    }
    "byteorder" ByteOrder {
        from: 1 NFTNL_EXPR_BYTEORDER_SREG, to: 2 NFTNL_EXPR_BYTEORDER_DREG,
        length: 4 NFTNL_EXPR_BYTEORDER_LEN, size: 5 NFTNL_EXPR_BYTEORDER_SIZE
    }
    "lookup" Lookup {
        set: 1 NFTNL_EXPR_LOOKUP_SET, key: 2 NFTNL_EXPR_LOOKUP_SREG,
        wanted: 3 NFTNL_EXPR_LOOKUP_DREG
    }
    "fib" Fib {
        to: 1 NFTNL_EXPR_FIB_DREG, result: 2 NFTNL_EXPR_FIB_RESULT, flags: 3 NFTNL_EXPR_FIB_FLAGS
    }
    "numgen" Number {
        to: 1 NFTNL_EXPR_NG_DREG, modulus: 2 NFTNL_EXPR_NG_MODULUS, random: 3 NFTNL_EXPR_NG_TYPE
    }
    "hash" Hash {
        key: 1 NFTNL_EXPR_HASH_SREG, to: 2 NFTNL_EXPR_HASH_DREG, length: 3 NFTNL_EXPR_HASH_LEN,
        modulus: 4 NFTNL_EXPR_HASH_MODULUS, seed: 5 NFTNL_EXPR_HASH_SEED or 0
    }
    "dynset" Update {
        set: 1 NFTNL_EXPR_DYNSET_SET_NAME, renew: 3 NFTNL_EXPR_DYNSET_OP,
        key: 4 NFTNL_EXPR_DYNSET_SREG_KEY, data: 5 NFTNL_EXPR_DYNSET_SREG_DATA,
        timeout: 6 NFTNL_EXPR_DYNSET_TIMEOUT or 0
    }
    "objref" Object { kind: 1 NFTNL_EXPR_OBJREF_IMM_TYPE, name: 2 NFTNL_EXPR_OBJREF_IMM_NAME }
    "nat" Nat {
        destination: 1 NFTNL_EXPR_NAT_TYPE, family: 2 NFTNL_EXPR_NAT_FAMILY,
        address: 3 NFTNL_EXPR_NAT_REG_ADDR_MIN, port: 5 NFTNL_EXPR_NAT_REG_PROTO_MIN
    }
    "reject" Reject { kind: 1 NFTNL_EXPR_REJECT_TYPE, code: 2 NFTNL_EXPR_REJECT_CODE or 0 }
}

impl Expr {
    /// Decodes the expressions of a rule.
    pub(super) fn all(list: &Attr<'_>) -> Vec<Expr> {
        list.children().map(|expression| Expr::parse(&expression)).collect()
    }

    /// Decodes an expression. One that lacks a required attribute counts as not decoded.
    fn parse(expression: &Attr<'_>) -> Expr {
        let attrs = expression.children();
        let name = attrs.text(NFTA_EXPR_NAME).unwrap_or("?");
        let data = attrs.find(NFTA_EXPR_DATA).map_or(Attrs::new(&[]), |data| data.children());
        let others = || {
            Some(match name {
                "immediate" => {
                    let verdict = data.find(2)?.children().find(NFTA_DATA_VERDICT)?;
                    Expr::Verdict(Verdict::parse(&verdict)?.with(|chain| (*chain).to_owned()))
                }
                "masq" => {
                    let flags = data.be32(1).unwrap_or(0);
                    Expr::Masquerade { fully_random: flags & RANDOM_FULLY != 0 }
                }
                "counter" => Expr::Counter,
                "match" => Expr::Match(Extension::parse(&data)?),
                "target" => Expr::Target(Extension::parse(&data)?),
                _ => return None,
            })
        };
        let decoded = Expr::read_fields(name, &data).or_else(others);
        decoded.unwrap_or_else(|| Expr::Other(name.to_owned()))
    }
}

impl nftnl::expr::Expression for Expr {
    fn to_expr(&self, _rule: &nftnl::Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let mut attributes = Attributes::new();
        self.write_fields(&mut attributes);
        match self {
            Expr::Verdict(verdict) => {
                libc::NFT_REG_VERDICT.write(sys::NFTNL_EXPR_IMM_DREG, &mut attributes);
                verdict.code().write(sys::NFTNL_EXPR_IMM_VERDICT, &mut attributes);
                if let Some(chain) = verdict.chain() {
                    chain.to_owned().write(sys::NFTNL_EXPR_IMM_CHAIN, &mut attributes);
                }
            }
            Expr::Hash { .. } => JENKINS.write(sys::NFTNL_EXPR_HASH_TYPE, &mut attributes),
            Expr::Masquerade { fully_random } => {
                let flags = if *fully_random { RANDOM_FULLY } else { 0 };
                flags.write(sys::NFTNL_EXPR_MASQ_FLAGS, &mut attributes);
            }
            // They are only read. The kernel refuses a range without attributes (`EINVAL`).
            Expr::Match(_) | Expr::Target(_) | Expr::Other(_) => return build("range", &[]),
            _ => {}
        }
        build(self.name(), &attributes)
    }
}

/// Returns a counter for every element of a set with `counter`.
pub(super) fn counter() -> NonNull<sys::nftnl_expr> {
    build("counter", &[])
}

/// Makes a libnftnl expression. The caller owns it; adding it to a rule or set hands it on.
fn build(kind: &str, attributes: &[(u32, Vec<u8>)]) -> NonNull<sys::nftnl_expr> {
    let kind = c_string(kind);
    // SAFETY: the name is NUL-terminated and only read during the call.
    let expr = unsafe { sys::nftnl_expr_alloc(kind.as_ptr()) };
    let Some(expr) = NonNull::new(expr) else {
        // Only out of memory gets here: libnftnl has all the names. The standard
        // library aborts then too.
        std::process::abort();
    };
    for (attribute, value) in attributes {
        let (attribute, length) = (*attribute as u16, value.len() as u32);
        // SAFETY: the expression is alive and ours; libnftnl copies the bytes, whose length is given.
        unsafe { sys::nftnl_expr_set(expr.as_ptr(), attribute, value.as_ptr().cast(), length) };
        // libnftnl 1.2.9 ignores a value of another length than the attribute's; 1.2.4 does not.
        // SAFETY: the expression is alive.
        debug_assert!(unsafe { sys::nftnl_expr_is_set(expr.as_ptr(), attribute) });
    }
    expr
}

/// The text up to its first NUL; names of chains and sets have none.
pub(super) fn c_string(text: &str) -> CString {
    let end = text.bytes().position(|b| b == 0).unwrap_or(text.len());
    CString::new(&text.as_bytes()[..end]).unwrap_or_default()
}

impl Extension {
    fn parse(data: &Attrs<'_>) -> Option<Extension> {
        let info = data.find(3)?.payload.to_vec();
        Some(Extension { name: data.text(1)?.to_owned(), revision: data.be32(2)?, info })
    }
}

impl Field for u32 {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<u32> {
        attrs.be32(kernel)
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        to.push((nftnl, self.to_ne_bytes().to_vec()));
    }
}

/// Makes fields of what the kernel has as a number.
macro_rules! numbers {
    ($($field:ty: $from:expr, $to:expr;)*) => {
        $(impl Field for $field {
            fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<$field> {
                attrs.be32(kernel).and_then($from)
            }

            fn write(&self, nftnl: u32, to: &mut Attributes) {
                Field::write(&$to(*self), nftnl, to);
            }
        })*
    };
}

numbers! {
    i32: |number| Some(number as i32), |number| number as u32;
    bool: |number| Some(number == 1), u32::from;
    Register: Register::from_raw, Register::raw;
    Comparison: Comparison::from_raw, |comparison| comparison as u32;
}

impl Field for u64 {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<u64> {
        attrs.be64(kernel)
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        to.push((nftnl, self.to_ne_bytes().to_vec()));
    }
}

impl Field for u8 {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<u8> {
        attrs.find(kernel)?.payload.first().copied()
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        to.push((nftnl, vec![*self]));
    }
}

impl Field for String {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<String> {
        Some(attrs.text(kernel)?.to_owned())
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        to.push((nftnl, c_string(self).into_bytes_with_nul()));
    }
}

impl Field for Vec<u8> {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<Vec<u8>> {
        Some(attrs.find(kernel)?.children().find(NFTA_DATA_VALUE)?.payload.to_vec())
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        to.push((nftnl, self.clone()));
    }
}

/// An attribute that may be missing.
impl<F: Field> Field for Option<F> {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<Option<F>> {
        attrs.find(kernel).map_or(Some(None), |_| F::read(attrs, kernel).map(Some))
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        if let Some(field) = self {
            field.write(nftnl, to);
        }
    }
}

impl Field for Wanted {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<Wanted> {
        let is_inverted = attrs.be32(5).unwrap_or(0) & libc::NFT_LOOKUP_F_INV as u32 != 0;
        Some(match attrs.be32(kernel) {
            None if is_inverted => Wanted::NoMember,
            None => Wanted::Member,
            Some(to) if to == libc::NFT_REG_VERDICT as u32 => Wanted::Verdict,
            Some(to) => Wanted::Value(Register::from_raw(to)?),
        })
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        match self {
            Wanted::Member => {}
            Wanted::NoMember => libc::NFT_LOOKUP_F_INV.write(sys::NFTNL_EXPR_LOOKUP_FLAGS, to),
            Wanted::Value(register) => register.write(nftnl, to),
            Wanted::Verdict => libc::NFT_REG_VERDICT.write(nftnl, to),
        }
    }
}

impl Field for Bitwise {
    fn read(attrs: &Attrs<'_>, kernel: u16) -> Option<Bitwise> {
        // Kernels from 5.6 on have other operations, by number.
        let bits = Vec::read(attrs, kernel).zip(Vec::read(attrs, 5));
        let bits = bits.filter(|_| attrs.be32(6).unwrap_or(0) == 0);
        Some(bits.map_or(Bitwise::Other, |(mask, xor)| Bitwise::Mask { mask, xor }))
    }

    fn write(&self, nftnl: u32, to: &mut Attributes) {
        if let Bitwise::Mask { mask, xor } = self {
            mask.write(nftnl, to);
            xor.write(sys::NFTNL_EXPR_BITWISE_XOR, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_two_numbers() {
        let numbers = [1, 8, 4, 20, 9, 23];
        let indices = numbers.map(|number| Register::from_raw(number).map(|it| it.0));
        assert_eq!(indices, [Some(0), Some(0), Some(12), Some(12), Some(1), Some(15)]);
        assert_eq!([0, 5, 7, 24, u32::MAX].map(Register::from_raw), [None; 5]);
    }
}
