//! Decodes expressions of rules. libnftnl would give up a rule with an expression that it does not
//! know.

use super::expr::{JENKINS, RANDOM_FULLY};
use super::uapi::{NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME};
use super::{Bitwise, Comparison, Expr, Extension, Register, Verdict, Wanted};
use crate::attr::{Attr, Attrs};

impl Expr {
    /// Decodes the expressions of a rule.
    pub(super) fn all(list: &Attr<'_>) -> Vec<Expr> {
        list.children().map(|expression| Expr::parse(&expression)).collect()
    }

    /// Decodes an expression. One that lacks a required attribute counts as not decoded.
    fn parse(expression: &Attr<'_>) -> Expr {
        let attrs = expression.children();
        let name = attrs.find(NFTA_EXPR_NAME).and_then(|it| it.text()).unwrap_or("?");
        let data = attrs.find(NFTA_EXPR_DATA).map_or(Attrs::new(&[]), |data| data.children());
        Expr::decode(name, &data).unwrap_or_else(|| Expr::Other(name.to_owned()))
    }

    /// Decodes the attributes of an expression. The names of a pattern are those of the kernel, in
    /// the order of their numbers (`enum nft_*_attributes` of `linux/netfilter/nf_tables.h`,
    /// `nf_tables_compat.h`).
    fn decode(name: &str, data: &Attrs<'_>) -> Option<Expr> {
        Some(match name {
            "immediate" => {
                let [to, data] = attributes(data);
                match (value(data), data?.children().find(NFTA_DATA_VERDICT)) {
                    (Some(bytes), _) => Expr::Value { bytes, to: register(to)? },
                    (None, verdict) => {
                        Expr::Verdict(Verdict::parse(&verdict?)?.with(|chain| (*chain).to_owned()))
                    }
                }
            }
            "payload" => {
                let [to, base, offset, length, from] = attributes(data);
                let (base, offset, length) = (key(base)?, number(offset)?, number(length)?);
                match register(to) {
                    Some(to) => Expr::Payload { base, offset, length, to },
                    None => Expr::SetPayload { base, offset, length, from: register(from)? },
                }
            }
            "meta" => {
                let [to, property, from] = attributes(data);
                match register(to) {
                    Some(to) => Expr::Meta { key: key(property)?, to },
                    None => Expr::SetMeta { key: key(property)?, from: register(from)? },
                }
            }
            "ct" => {
                let [to, property, direction, from] = attributes(data);
                match register(to) {
                    Some(to) => Expr::Ct { key: key(property)?, direction: byte(direction), to },
                    None => Expr::SetCt { key: key(property)?, from: register(from)? },
                }
            }
            "cmp" => {
                let [from, op, with] = attributes(data);
                let comparison = Comparison::from_raw(number(op)?)?;
                Expr::Compare { from: register(from)?, comparison, with: value(with)? }
            }
            "range" => {
                let [from, op, first, last] = attributes(data);
                /// `NFT_RANGE_NEQ`.
                const NEGATED: u32 = 1;
                let (negate, from) = (number(op)? == NEGATED, register(from)?);
                Expr::Range { from, negate, first: value(first)?, last: value(last)? }
            }
            "bitwise" => {
                let [from, to, length, mask, xor, op, operand] = attributes(data);
                let shift = || Some(u32::from_ne_bytes(value(operand)?.try_into().ok()?));
                // Kernels before 5.6 have no other operations, and do not name this one.
                let operation = match op.map_or(Some(0), |op| op.be32()) {
                    Some(0) => {
                        value(mask).zip(value(xor)).map(|(mask, xor)| Bitwise::Mask { mask, xor })
                    }
                    Some(1) => shift().map(Bitwise::Left),
                    Some(2) => shift().map(Bitwise::Right),
                    _ => None,
                };
                let operation = operation.unwrap_or(Bitwise::Other);
                let (from, to) = (register(from)?, register(to)?);
                Expr::Bitwise { from, to, length: number(length)?, operation }
            }
            "byteorder" => {
                let [from, to, _op, length, size] = attributes(data);
                let (from, to) = (register(from)?, register(to)?);
                Expr::ByteOrder { from, to, length: number(length)?, size: number(size)? }
            }
            "lookup" => {
                let [set, key, to, _id, flags] = attributes(data);
                let is_inverted = number(flags).unwrap_or(0) & libc::NFT_LOOKUP_F_INV as u32 != 0;
                let wanted = match number(to) {
                    None if is_inverted => Wanted::NoMember,
                    None => Wanted::Member,
                    Some(to) if to == libc::NFT_REG_VERDICT as u32 => Wanted::Verdict,
                    Some(to) => Wanted::Value(Register::from_raw(to)?),
                };
                Expr::Lookup { set: text(set)?, key: register(key)?, wanted }
            }
            "fib" => {
                let [to, result, flags] = attributes(data);
                Expr::Fib { result: number(result)?, flags: number(flags)?, to: register(to)? }
            }
            "numgen" => {
                let [to, modulus, kind] = attributes(data);
                let random = number(kind)? == libc::NFT_NG_RANDOM as u32;
                Expr::Number { modulus: number(modulus)?, random, to: register(to)? }
            }
            "hash" => {
                let [key, to, length, modulus, seed, _offset, kind] = attributes(data);
                number(kind).is_none_or(|kind| kind == JENKINS).then_some(())?;
                Expr::Hash {
                    key: register(key)?,
                    length: number(length)?,
                    modulus: number(modulus)?,
                    seed: number(seed).unwrap_or(0),
                    to: register(to)?,
                }
            }
            "dynset" => {
                let [set, _id, op, key, value, timeout] = attributes(data);
                Expr::Update {
                    set: text(set)?,
                    key: register(key)?,
                    data: optional(value)?,
                    timeout: timeout.and_then(|it| it.be64()).unwrap_or(0),
                    renew: number(op)? == libc::NFT_DYNSET_OP_UPDATE as u32,
                }
            }
            "objref" => {
                let [kind, name] = attributes(data);
                Expr::Object { kind: number(kind)?, name: text(name)? }
            }
            "nat" => {
                let [kind, family, address, _address_max, port] = attributes(data);
                Expr::Nat {
                    source: key(kind)? == libc::NFT_NAT_SNAT,
                    family: number(family)?,
                    address: optional(address)?,
                    port: optional(port)?,
                }
            }
            "masq" => {
                let [flags] = attributes(data);
                let fully_random = number(flags).unwrap_or(0) & RANDOM_FULLY != 0;
                Expr::Masquerade { fully_random }
            }
            "reject" => {
                let [kind, code] = attributes(data);
                Expr::Reject { kind: key(kind)?, code: byte(code).unwrap_or(0) }
            }
            "counter" => Expr::Counter,
            "match" => Expr::Match(Extension::parse(data)?),
            "target" => Expr::Target(Extension::parse(data)?),
            _ => return None,
        })
    }
}

impl Extension {
    fn parse(data: &Attrs<'_>) -> Option<Extension> {
        let [name, revision, info] = attributes(data);
        let info = info?.payload.to_vec();
        Some(Extension { name: text(name)?, revision: number(revision)?, info })
    }
}

/// Returns the attributes with the numbers from 1 on.
fn attributes<'a, const N: usize>(data: &Attrs<'a>) -> [Option<Attr<'a>>; N] {
    std::array::from_fn(|index| data.find(index as u16 + 1))
}

fn number(attr: Option<Attr<'_>>) -> Option<u32> {
    attr?.be32()
}

fn key(attr: Option<Attr<'_>>) -> Option<i32> {
    Some(number(attr)? as i32)
}

fn byte(attr: Option<Attr<'_>>) -> Option<u8> {
    attr?.payload.first().copied()
}

fn text(attr: Option<Attr<'_>>) -> Option<String> {
    Some(attr?.text()?.to_owned())
}

fn register(attr: Option<Attr<'_>>) -> Option<Register> {
    Register::from_raw(number(attr)?)
}

/// Reads a register that may be missing.
fn optional(attr: Option<Attr<'_>>) -> Option<Option<Register>> {
    attr.map_or(Some(None), |attr| register(Some(attr)).map(Some))
}

/// Reads the bytes in an attribute with data.
pub(super) fn value(attr: Option<Attr<'_>>) -> Option<Vec<u8>> {
    Some(attr?.children().find(NFTA_DATA_VALUE)?.payload.to_vec())
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
