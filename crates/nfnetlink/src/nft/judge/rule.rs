//! The rules of a chain, as far as the judgement understands them.

use super::uapi::*;
use crate::attr::{Attr, Attrs};
use crate::nft::uapi::{
    NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA,
    NFTA_LOOKUP_DREG, NFTA_LOOKUP_SET, NFTA_OBJREF_IMM_TYPE, NFTA_RULE_EXPRESSIONS,
    NFTA_RULE_HANDLE, NFTA_TARGET_NAME, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};

/// The rules of a chain, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) rules: Vec<Rule>,
    /// False if the chain has more rules than were read.
    pub(super) complete: bool,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// The number of the rule.
    pub(super) handle: u64,
    pub(super) expressions: Vec<Expression>,
}

impl Rule {
    /// Reads a rule from the attributes of its message.
    pub(super) fn parse(attrs: &Attrs<'_>) -> Rule {
        let expressions = attrs.find(NFTA_RULE_EXPRESSIONS);
        let expressions = expressions.iter().flat_map(Attr::children);
        Rule {
            handle: attrs.find(NFTA_RULE_HANDLE).and_then(|it| it.be64()).unwrap_or(0),
            expressions: expressions.map(|it| Expression::parse(&it)).collect(),
        }
    }
}

/// What a packet does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Continue,
    Break,
    Return,
    Jump(String),
    Goto(String),
    /// Another verdict, such as that of a queue, by its number.
    Other(i32),
}

impl Verdict {
    /// Reads the verdict in the data of an expression or an element.
    pub(super) fn parse(data: &Attrs<'_>) -> Option<Verdict> {
        let attrs = data.find(NFTA_DATA_VERDICT)?.children();
        let code = attrs.find(NFTA_VERDICT_CODE)?.be32()? as i32;
        let chain = || Some(attrs.find(NFTA_VERDICT_CHAIN)?.text()?.to_owned());
        Some(match code {
            libc::NF_DROP => Verdict::Drop,
            libc::NF_ACCEPT => Verdict::Accept,
            libc::NFT_CONTINUE => Verdict::Continue,
            libc::NFT_BREAK => Verdict::Break,
            libc::NFT_RETURN => Verdict::Return,
            libc::NFT_JUMP => Verdict::Jump(chain()?),
            libc::NFT_GOTO => Verdict::Goto(chain()?),
            other => Verdict::Other(other),
        })
    }
}

/// An expression of a rule. Registers have the numbers of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Value {
        to: u32,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    Payload {
        to: u32,
        base: u32,
        offset: usize,
        length: usize,
    },
    SetPayload {
        from: u32,
        base: u32,
        offset: usize,
        length: usize,
    },
    Meta {
        to: u32,
        key: i32,
    },
    SetMeta {
        from: u32,
        key: i32,
    },
    Ct {
        to: u32,
        key: i32,
        direction: Option<u8>,
    },
    SetCt {
        from: u32,
        key: i32,
    },
    Compare {
        from: u32,
        operation: i32,
        with: Vec<u8>,
    },
    Range {
        from: u32,
        negated: bool,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    Bitwise {
        from: u32,
        to: u32,
        length: usize,
        operation: Bitwise,
    },
    ByteOrder {
        from: u32,
        to: u32,
        length: usize,
        size: usize,
    },
    Lookup {
        set: String,
        key: u32,
        to: Option<u32>,
        inverted: bool,
    },
    Fib {
        to: u32,
        result: u32,
        flags: u32,
    },
    /// Stores a number that is not known.
    Random {
        to: u32,
    },
    Match {
        name: String,
        revision: u32,
        info: Vec<u8>,
    },
    Target {
        name: String,
        revision: u32,
        info: Vec<u8>,
    },
    /// Does not change the way of the packet.
    Neutral,
    /// Matches only some packets, which ones depends on a state that is not known.
    Sometimes(String),
    Reject,
    /// Hands the packet to another program or device.
    HandsOver(String),
    Untrack,
    /// Translates addresses, and accepts the packet.
    Nat(&'static str),
    /// Assigns the packet to a local socket.
    Tproxy,
    /// An expression that this crate does not know.
    Other(String),
}

/// An operation on the bits of registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bitwise {
    Mask { mask: Vec<u8>, xor: Vec<u8> },
    Left(u32),
    Right(u32),
    Other,
}

impl Expression {
    /// Reads an expression. One that lacks a required attribute counts as unknown.
    pub(super) fn parse(expression: &Attr<'_>) -> Expression {
        let attrs = expression.children();
        let Some(name) = attrs.find(NFTA_EXPR_NAME).and_then(|name| name.text()) else {
            return Expression::Other("without a name".to_owned());
        };
        let data = attrs.find(NFTA_EXPR_DATA).map_or(Attrs::new(&[]), |data| data.children());
        Expression::parse_named(name, &data).unwrap_or_else(|| Expression::Other(name.to_owned()))
    }

    fn parse_named(name: &str, data: &Attrs<'_>) -> Option<Expression> {
        let number = |kind| data.find(kind).and_then(|it| it.be32());
        let size = |kind| number(kind).map(|it| it as usize);
        let key = |kind| number(kind).map(|it| it as i32);
        let value = |kind| value(&data.find(kind)?);
        let text = |kind| Some(data.find(kind)?.text()?.to_owned());
        Some(match name {
            "immediate" => match value(NFTA_IMMEDIATE_DATA) {
                Some(value) => Expression::Value { to: number(NFTA_IMMEDIATE_DREG)?, value },
                None => {
                    let data = data.find(NFTA_IMMEDIATE_DATA)?.children();
                    Expression::Verdict(Verdict::parse(&data)?)
                }
            },
            "payload" => {
                let base = number(NFTA_PAYLOAD_BASE)?;
                let (offset, length) = (size(NFTA_PAYLOAD_OFFSET)?, size(NFTA_PAYLOAD_LEN)?);
                match (number(NFTA_PAYLOAD_DREG), number(NFTA_PAYLOAD_SREG)) {
                    (Some(to), None) => Expression::Payload { to, base, offset, length },
                    (_, from) => Expression::SetPayload { from: from?, base, offset, length },
                }
            }
            "meta" => match (number(NFTA_META_DREG), number(NFTA_META_SREG)) {
                (Some(to), None) => Expression::Meta { to, key: key(NFTA_META_KEY)? },
                (_, from) => Expression::SetMeta { from: from?, key: key(NFTA_META_KEY)? },
            },
            "ct" => match (number(NFTA_CT_DREG), number(NFTA_CT_SREG)) {
                (Some(to), None) => Expression::Ct {
                    to,
                    key: key(NFTA_CT_KEY)?,
                    direction: data.find(NFTA_CT_DIRECTION).and_then(|it| byte(&it)),
                },
                (_, from) => Expression::SetCt { from: from?, key: key(NFTA_CT_KEY)? },
            },
            "cmp" => Expression::Compare {
                from: number(NFTA_CMP_SREG)?,
                operation: key(NFTA_CMP_OP)?,
                with: value(NFTA_CMP_DATA)?,
            },
            "range" => Expression::Range {
                from: number(NFTA_RANGE_SREG)?,
                negated: number(NFTA_RANGE_OP)? == NFT_RANGE_NEQ,
                first: value(NFTA_RANGE_FROM_DATA)?,
                last: value(NFTA_RANGE_TO_DATA)?,
            },
            "bitwise" => Expression::Bitwise {
                from: number(NFTA_BITWISE_SREG)?,
                to: number(NFTA_BITWISE_DREG)?,
                length: size(NFTA_BITWISE_LEN)?,
                operation: Bitwise::parse(data),
            },
            "byteorder" => Expression::ByteOrder {
                from: number(NFTA_BYTEORDER_SREG)?,
                to: number(NFTA_BYTEORDER_DREG)?,
                length: size(NFTA_BYTEORDER_LEN)?,
                size: size(NFTA_BYTEORDER_SIZE)?,
            },
            "lookup" => Expression::Lookup {
                set: text(NFTA_LOOKUP_SET)?,
                key: number(NFTA_LOOKUP_SREG)?,
                to: number(NFTA_LOOKUP_DREG),
                inverted: number(NFTA_LOOKUP_FLAGS).unwrap_or(0) & NFT_LOOKUP_F_INV != 0,
            },
            "fib" => Expression::Fib {
                to: number(NFTA_FIB_DREG)?,
                result: number(NFTA_FIB_RESULT)?,
                flags: number(NFTA_FIB_FLAGS)?,
            },
            "numgen" => Expression::Random { to: number(NFTA_NG_DREG)? },
            "hash" => Expression::Random { to: number(NFTA_HASH_DREG)? },
            "match" => Expression::Match {
                name: text(NFTA_MATCH_NAME)?,
                revision: number(NFTA_MATCH_REV)?,
                info: data.find(NFTA_MATCH_INFO)?.payload.to_vec(),
            },
            "target" => Expression::Target {
                name: text(NFTA_TARGET_NAME)?,
                revision: number(NFTA_TARGET_REV)?,
                info: data.find(NFTA_TARGET_INFO)?.payload.to_vec(),
            },
            "counter" | "dup" | "last" | "log" => Expression::Neutral,
            "connlimit" | "dynset" | "exthdr" | "flow_offload" | "inner" | "limit" | "osf"
            | "quota" | "rt" | "socket" | "tunnel" | "xfrm" => {
                Expression::Sometimes(name.to_owned())
            }
            "objref" => match number(NFTA_OBJREF_IMM_TYPE) {
                Some(
                    NFT_OBJECT_COUNTER
                    | NFT_OBJECT_CT_HELPER
                    | NFT_OBJECT_TUNNEL
                    | NFT_OBJECT_CT_TIMEOUT
                    | NFT_OBJECT_SECMARK
                    | NFT_OBJECT_CT_EXPECT,
                ) => Expression::Neutral,
                Some(NFT_OBJECT_SYNPROXY) => Expression::HandsOver("synproxy".to_owned()),
                // Quotas and limits, and maps of objects, among which may be such.
                _ => Expression::Sometimes("an object".to_owned()),
            },
            "reject" => Expression::Reject,
            "queue" | "synproxy" | "fwd" => Expression::HandsOver(name.to_owned()),
            "notrack" => Expression::Untrack,
            "nat" if number(NFTA_NAT_TYPE)? == NFT_NAT_SNAT => Expression::Nat("snat"),
            "nat" => Expression::Nat("dnat"),
            "masq" => Expression::Nat("masquerade"),
            "redir" => Expression::Nat("redirect"),
            "tproxy" => Expression::Tproxy,
            _ => return None,
        })
    }
}

impl Bitwise {
    fn parse(data: &Attrs<'_>) -> Bitwise {
        let value = |kind| data.find(kind).and_then(|it| value(&it));
        let shift = || value(NFTA_BITWISE_DATA)?.try_into().ok().map(u32::from_ne_bytes);
        // Kernels before 5.6 have no other operations, and do not name this one.
        let operation = match data.find(NFTA_BITWISE_OP) {
            Some(operation) => operation.be32(),
            None => Some(NFT_BITWISE_MASK_XOR),
        };
        let parsed = match operation {
            Some(NFT_BITWISE_MASK_XOR) => value(NFTA_BITWISE_MASK)
                .zip(value(NFTA_BITWISE_XOR))
                .map(|(mask, xor)| Bitwise::Mask { mask, xor }),
            Some(NFT_BITWISE_LSHIFT) => shift().map(Bitwise::Left),
            Some(NFT_BITWISE_RSHIFT) => shift().map(Bitwise::Right),
            _ => None,
        };
        parsed.unwrap_or(Bitwise::Other)
    }
}

/// Returns the bytes in an attribute with data.
pub(super) fn value(data: &Attr<'_>) -> Option<Vec<u8>> {
    Some(data.children().find(NFTA_DATA_VALUE)?.payload.to_vec())
}

fn byte(attr: &Attr<'_>) -> Option<u8> {
    attr.payload.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{nest, put, put_be32, put_text};

    /// Reads an expression with this data.
    fn parse(name: &str, data: impl FnOnce(&mut Vec<u8>)) -> Expression {
        let mut list = Vec::new();
        nest(&mut list, 1, |expression| {
            put_text(expression, NFTA_EXPR_NAME, name);
            nest(expression, NFTA_EXPR_DATA, data);
        });
        let expression = Attrs::new(&list).next().expect("one expression");
        Expression::parse(&expression)
    }

    fn verdict(code: i32) -> Expression {
        parse("immediate", |data| {
            put_be32(data, NFTA_IMMEDIATE_DREG, 0);
            nest(data, NFTA_IMMEDIATE_DATA, |value| {
                nest(value, NFTA_DATA_VERDICT, |verdict| {
                    put_be32(verdict, NFTA_VERDICT_CODE, code as u32);
                    put_text(verdict, NFTA_VERDICT_CHAIN, "next");
                });
            });
        })
    }

    #[test]
    fn verdicts_are_read() {
        for (code, expected) in [
            (libc::NF_DROP, Verdict::Drop),
            (libc::NF_ACCEPT, Verdict::Accept),
            (libc::NFT_RETURN, Verdict::Return),
            (libc::NFT_CONTINUE, Verdict::Continue),
            (libc::NFT_BREAK, Verdict::Break),
            (libc::NFT_JUMP, Verdict::Jump("next".to_owned())),
            (libc::NFT_GOTO, Verdict::Goto("next".to_owned())),
            (libc::NF_QUEUE | 5 << 16, Verdict::Other(libc::NF_QUEUE | 5 << 16)),
        ] {
            assert_eq!(verdict(code), Expression::Verdict(expected));
        }
    }

    #[test]
    fn loads_and_stores_are_told_apart() {
        let meta = |register| {
            parse("meta", |data| {
                put_be32(data, NFTA_META_KEY, 3);
                put_be32(data, register, 1);
            })
        };
        assert_eq!(meta(NFTA_META_DREG), Expression::Meta { to: 1, key: libc::NFT_META_MARK });
        assert_eq!(meta(NFTA_META_SREG), Expression::SetMeta { from: 1, key: libc::NFT_META_MARK });
        let ct = parse("ct", |data| {
            put_be32(data, NFTA_CT_KEY, 9);
            put_be32(data, NFTA_CT_DREG, 8);
            put(data, NFTA_CT_DIRECTION, &[1]);
        });
        assert_eq!(ct, Expression::Ct { to: 8, key: libc::NFT_CT_DST, direction: Some(1) });
    }

    #[test]
    fn operations_on_bits_are_read() {
        let bitwise = |operation: Option<u32>| {
            parse("bitwise", |data| {
                for kind in [NFTA_BITWISE_SREG, NFTA_BITWISE_DREG, NFTA_BITWISE_LEN] {
                    put_be32(data, kind, 4);
                }
                let value = |data: &mut Vec<u8>, kind| {
                    nest(data, kind, |inside| {
                        put(inside, NFTA_DATA_VALUE, &7_u32.to_ne_bytes());
                    });
                };
                value(data, NFTA_BITWISE_MASK);
                value(data, NFTA_BITWISE_XOR);
                value(data, NFTA_BITWISE_DATA);
                if let Some(operation) = operation {
                    put_be32(data, NFTA_BITWISE_OP, operation);
                }
            })
        };
        let seven = 7_u32.to_ne_bytes().to_vec();
        let mask = Bitwise::Mask { mask: seven.clone(), xor: seven };
        for (number, operation) in [
            (None, mask.clone()),
            (Some(0), mask),
            (Some(1), Bitwise::Left(7)),
            (Some(2), Bitwise::Right(7)),
            (Some(3), Bitwise::Other),
        ] {
            let expected = Expression::Bitwise { from: 4, to: 4, length: 4, operation };
            assert_eq!(bitwise(number), expected);
        }
    }

    #[test]
    fn incomplete_and_new_expressions_are_unknown() {
        assert_eq!(parse("counter", |_| {}), Expression::Neutral);
        assert_eq!(parse("limit", |_| {}), Expression::Sometimes("limit".to_owned()));
        for name in ["cmp", "meta", "payload", "immediate", "match", "something"] {
            assert_eq!(parse(name, |_| {}), Expression::Other(name.to_owned()));
        }
        let object = |number| parse("objref", |data| put_be32(data, NFTA_OBJREF_IMM_TYPE, number));
        assert_eq!(object(NFT_OBJECT_COUNTER), Expression::Neutral);
        assert_eq!(object(NFT_OBJECT_SYNPROXY), Expression::HandsOver("synproxy".to_owned()));
        assert_eq!(object(4), Expression::Sometimes("an object".to_owned()));
    }
}
