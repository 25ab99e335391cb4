//! What becomes of a packet: the verdict of a rule, an element, a policy or a trace.

use std::fmt;

use super::uapi::{NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE};
use crate::attr::{Attr, nest, put_be32, put_text};

/// A verdict, with the name of a chain as the type `Name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict<Name = String> {
    /// The next hook.
    Accept,
    /// The packet is dropped. In a trace, a rule that rejects drops it, too, after its answer.
    Drop,
    /// A program in user space takes the packet.
    Queue,
    /// The kernel keeps the packet for another purpose.
    Stolen,
    /// The next expression of the rule.
    Continue,
    /// The next rule.
    Break,
    /// The next rule of the calling chain.
    Return,
    /// The first rule of a chain, and later the next one of this chain.
    Jump(Name),
    /// The first rule of a chain.
    Goto(Name),
    /// Another verdict, by its number.
    Other(i32),
}

impl<Name: Default> Verdict<Name> {
    pub(super) fn of(code: i32, chain: Option<Name>) -> Verdict<Name> {
        let chain = chain.unwrap_or_default();
        match code {
            libc::NF_ACCEPT => Verdict::Accept,
            libc::NF_DROP => Verdict::Drop,
            libc::NF_STOLEN => Verdict::Stolen,
            libc::NFT_CONTINUE => Verdict::Continue,
            libc::NFT_BREAK => Verdict::Break,
            libc::NFT_RETURN => Verdict::Return,
            libc::NFT_JUMP => Verdict::Jump(chain),
            libc::NFT_GOTO => Verdict::Goto(chain),
            // The other bytes are the number of the queue.
            code if code >= 0 && code & 0xff == libc::NF_QUEUE => Verdict::Queue,
            // A drop with an error number.
            code if code >= 0 && code & 0xff == libc::NF_DROP => Verdict::Drop,
            code => Verdict::Other(code),
        }
    }
}

impl<'a> Verdict<&'a str> {
    /// Reads the attribute of a verdict.
    pub(super) fn parse(verdict: &Attr<'a>) -> Option<Verdict<&'a str>> {
        let attrs = verdict.children();
        let code = attrs.be32(NFTA_VERDICT_CODE)? as i32;
        Some(Verdict::of(code, attrs.text(NFTA_VERDICT_CHAIN)))
    }

    /// Appends the attribute of a verdict.
    pub(super) fn put(self, buffer: &mut Vec<u8>, kind: u16) {
        nest(buffer, kind, |verdict| {
            put_be32(verdict, NFTA_VERDICT_CODE, self.code() as u32);
            if let Some(chain) = self.chain() {
                put_text(verdict, NFTA_VERDICT_CHAIN, chain);
            }
        });
    }
}

impl<Name> Verdict<Name> {
    /// Returns the kernel's number.
    pub(super) fn code(&self) -> i32 {
        match self {
            Verdict::Accept => libc::NF_ACCEPT,
            Verdict::Drop => libc::NF_DROP,
            Verdict::Queue => libc::NF_QUEUE,
            Verdict::Stolen => libc::NF_STOLEN,
            Verdict::Continue => libc::NFT_CONTINUE,
            Verdict::Break => libc::NFT_BREAK,
            Verdict::Return => libc::NFT_RETURN,
            Verdict::Jump(_) => libc::NFT_JUMP,
            Verdict::Goto(_) => libc::NFT_GOTO,
            Verdict::Other(code) => *code,
        }
    }

    /// Returns the verdict with another form of the chain's name.
    #[must_use]
    pub fn with<'a, Other: Default>(
        &'a self,
        name: impl FnOnce(&'a Name) -> Other,
    ) -> Verdict<Other> {
        match self {
            Verdict::Jump(chain) => Verdict::Jump(name(chain)),
            Verdict::Goto(chain) => Verdict::Goto(name(chain)),
            other => Verdict::of(other.code(), None),
        }
    }
}

impl<Name: AsRef<str>> Verdict<Name> {
    /// Returns the chain of a goto or jump.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain.as_ref()),
            _ => None,
        }
    }
}

impl<Name: fmt::Display> fmt::Display for Verdict<Name> {
    /// Writes the words of nft.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Queue => f.write_str("queue"),
            Verdict::Stolen => f.write_str("stolen"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Break => f.write_str("break"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Other(code) => write!(f, "verdict {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_have_the_words_of_nft() {
        for (code, word) in [
            (libc::NF_ACCEPT, "accept"),
            (libc::NF_DROP, "drop"),
            (libc::NF_DROP | 13 << 16, "drop"),
            (libc::NF_QUEUE | 2 << 16, "queue"),
            (libc::NFT_CONTINUE, "continue"),
            (libc::NFT_JUMP, "jump c"),
            (-77, "verdict -77"),
        ] {
            assert_eq!(Verdict::of(code, Some("c")).to_string(), word);
        }
    }
}
