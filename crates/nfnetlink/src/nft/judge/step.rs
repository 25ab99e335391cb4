//! What one expression does with a packet.

use super::packet::{State, Tracking};
use super::truth::Truth;
use crate::nft::Verdict;

/// What an expression does with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The next expression follows, if this is not [`Truth::No`]. If it is [`Truth::Unknown`], the
    /// next rule may follow instead, for the reason of the evaluation.
    Match(Truth),
    /// A verdict ends the rule.
    Verdict(Verdict),
    /// Drops the packet, by this statement.
    Drop(String),
    /// Translates an address by this statement, and accepts the packet.
    Translate(String),
    /// Changes something that the connection tracking or NAT of later chains needs, by this
    /// statement. The next expression follows or, if this is unknown, perhaps the next rule.
    Divert(String, Truth),
    /// Anything may happen to the packet after this statement, for this reason.
    Anything { what: String, why: &'static str },
    /// A set has the answer.
    Lookup,
}

impl Step {
    /// The next expression follows.
    pub(super) const NEXT: Step = Step::Match(Truth::Yes);

    /// Another program or device decides.
    pub(super) fn hands_over(what: &str) -> Step {
        let why = "it hands the packet over to another program or device";
        Step::Anything { what: what.to_owned(), why }
    }
}

/// Excludes a packet from connection tracking, unless it is tracked already.
pub(super) fn untrack(state: &mut State) -> Step {
    match state.tracking {
        Tracking::Tracked | Tracking::Untracked => return Step::NEXT,
        Tracking::Before => state.tracking = Tracking::Untracked,
        Tracking::Unknown => {}
    }
    Step::Divert("notrack".to_owned(), Truth::Yes)
}
