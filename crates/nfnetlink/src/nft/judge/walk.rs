//! The way of a packet through the rules of a chain, and of the chains that it leads to.
//!
//! Where a match is undecided, the packet may go either way. Both ways meet again at the next rule:
//! the state there keeps what both have in common. So each rule is evaluated once per jump to its
//! chain, however many matches are undecided.

use std::rc::Rc;

use super::matches::Evaluation;
use super::packet::{Mark, State, Tracking, View};
use super::registers::Bits;
use super::step::Step;
use super::truth::Truth;
use super::{Judgement, Passing, Place};
use crate::attr::Attrs;
use crate::nft::dump::{expressions, parse_data};
use crate::nft::uapi::{NFTA_EXPR_NAME, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_LIST_ELEMENTS};
use crate::nft::{DumpedRule, DumpedSet, ElementData, Expr, Register, Verdict, Wanted};

/// The judgement gives up after this many evaluated rules.
pub(super) const MAX_RULES: usize = 10_000;

/// The deepest chain of jumps. The kernel allows 16.
const MAX_DEPTH: usize = 32;

/// The chains and sets of a table.
pub(super) trait Ruleset {
    /// The error of a listing.
    type Error;

    /// Returns the rules of a chain, in their order.
    fn chain(&mut self, name: &str) -> Result<Rc<[DumpedRule]>, Self::Error>;

    /// Returns the definition of a set or map; `None` if it cannot be decoded.
    fn set(&mut self, name: &str) -> Result<Option<DumpedSet>, Self::Error>;

    /// Looks up the element of a key. An empty key asks for the catch-all element.
    fn find(&mut self, set: &str, key: &[u8]) -> Result<Option<Found>, Self::Error>;
}

/// An element of a set.
pub(super) struct Found {
    value: Option<Vec<u8>>,
    verdict: Option<Verdict>,
    /// True if the element has an expression that may not match.
    is_limited: bool,
}

impl Found {
    /// Reads the first element of a message.
    pub(super) fn parse(attrs: &Attrs<'_>) -> Option<Found> {
        let element = attrs.find(NFTA_SET_ELEM_LIST_ELEMENTS)?.children().next()?.children();
        let data = element.find(NFTA_SET_ELEM_DATA);
        let is_limited = expressions(&element).any(|expression| {
            !matches!(expression.children().text(NFTA_EXPR_NAME), Some("counter" | "last"))
        });
        let (value, verdict) = match data.and_then(|data| parse_data(&data.children())) {
            Some(ElementData::Value(bytes)) => (Some(bytes.to_vec()), None),
            Some(ElementData::Verdict(it)) => (None, Some(it.with(|chain| (*chain).to_owned()))),
            None => (None, None),
        };
        Some(Found { value, verdict, is_limited })
    }
}

/// What may happen to a packet in a chain, as far as the walk has come.
struct Walk<'a, R: Ruleset> {
    ruleset: &'a mut R,
    view: &'a View<'a>,
    /// The number of rules that may still be evaluated.
    left: usize,
    /// The state of the packet where it may be accepted.
    accepted: Option<State>,
    /// The first place where the packet may be dropped, and why it is not certain.
    dropped: Option<(Place, Option<String>)>,
    /// The first place after which anything may happen, and why.
    unknown: Option<(Place, String)>,
    /// The first place that may translate the packet.
    translation: Option<Place>,
    /// The first undecided match.
    doubt: Option<String>,
    /// The number of times that the packet may have left the base chain.
    ends: usize,
    /// The number of times that the packet may have returned from the current chain.
    returns: usize,
}

/// Returns the place after the last rule of a chain.
fn end_of(chain: &str, what: &str) -> Place {
    Place { chain: chain.to_owned(), rule: None, what: what.to_owned() }
}

/// Merges a way of the packet into others.
fn join(ways: &mut Option<State>, way: State) {
    *ways = Some(match ways.take() {
        Some(other) => other.join(&way),
        None => way,
    });
}

/// Judges a packet at a base chain, and gives up after this many rules.
pub(super) fn walk<R: Ruleset>(
    rules: usize,
    ruleset: &mut R,
    view: &View<'_>,
) -> Result<Judgement, R::Error> {
    let mut walk = Walk {
        ruleset,
        view,
        left: rules,
        accepted: None,
        dropped: None,
        unknown: None,
        translation: None,
        doubt: None,
        ends: 0,
        returns: 0,
    };
    let chain = view.chain;
    if let Some(state) = walk.chain(&chain.chain, view.state(), 0)? {
        if chain.drops_by_default {
            walk.drop(end_of(&chain.chain, "policy drop"), &state);
        } else {
            walk.accept(state);
        }
    }
    Ok(walk.judgement())
}

impl<R: Ruleset> Walk<'_, R> {
    fn judgement(self) -> Judgement {
        let accepted = self.accepted.as_ref().filter(|_| self.unknown.is_none());
        let mark = accepted.map_or(Mark::UNKNOWN, |state| Mark::of(&state.mark));
        let untracked = accepted.is_some_and(|state| state.tracking == Tracking::Untracked);
        let first_doubt = self.doubt.unwrap_or_default();
        let passing = match (self.accepted, self.dropped, self.unknown) {
            (_, None, None) => Passing::Passes,
            (None, Some((place, _)), None) => Passing::Drops(place),
            (Some(_), Some((place, why)), None) => {
                Passing::May { place, why: why.unwrap_or(first_doubt) }
            }
            (_, _, Some((place, why))) => Passing::May { place, why },
        };
        Judgement { passing, translation: self.translation, mark, untracked }
    }

    fn accept(&mut self, state: State) {
        self.ends += 1;
        join(&mut self.accepted, state);
    }

    fn drop(&mut self, place: Place, state: &State) {
        self.ends += 1;
        self.dropped.get_or_insert_with(|| (place, state.doubt.clone()));
    }

    fn unknown(&mut self, place: Place, why: String) {
        self.ends += 1;
        self.translation.get_or_insert_with(|| place.clone());
        self.unknown.get_or_insert((place, why));
    }

    /// Follows a packet through a chain. Returns its state after the last rule or a return; `None`
    /// if it never comes there.
    fn chain(&mut self, name: &str, state: State, depth: usize) -> Result<Option<State>, R::Error> {
        if depth > MAX_DEPTH {
            self.unknown(end_of(name, "jump"), "the chains are nested too deeply".to_owned());
            return Ok(None);
        }
        let rules = self.ruleset.chain(name)?;
        let (ends, returns) = (self.ends, std::mem::take(&mut self.returns));
        let doubt = state.doubt.clone();
        let mut returned = self.rules(name, &rules, state, depth)?;
        self.returns = returns;
        if let Some(returned) = returned.as_mut().filter(|_| self.ends == ends) {
            // All ways have met again.
            returned.doubt = doubt;
        }
        Ok(returned)
    }

    /// Follows a packet through the rules of a chain.
    fn rules(
        &mut self,
        name: &str,
        rules: &[DumpedRule],
        state: State,
        depth: usize,
    ) -> Result<Option<State>, R::Error> {
        let mut returned = None;
        let mut state = Some(state);
        for rule in rules {
            let Some(at_rule) = state.take() else { return Ok(returned) };
            if self.left == 0 {
                let why = format!("the packet may meet more than {MAX_RULES} rules");
                self.unknown(end_of(name, "more rules"), why);
                return Ok(returned);
            }
            self.left -= 1;
            let (ends, returns) = (self.ends, self.returns);
            let doubt = at_rule.doubt.clone();
            state = self.rule(name, rule, at_rule, &mut returned, depth)?;
            if let Some(state) =
                state.as_mut().filter(|_| (self.ends, self.returns) == (ends, returns))
            {
                state.doubt = doubt;
            }
        }
        if let Some(state) = state {
            join(&mut returned, state);
        }
        Ok(returned)
    }

    /// Follows a packet through a rule. Returns its state before the next rule, and adds that after
    /// a return from the chain to `returned`.
    fn rule(
        &mut self,
        chain: &str,
        rule: &DumpedRule,
        mut state: State,
        returned: &mut Option<State>,
        depth: usize,
    ) -> Result<Option<State>, R::Error> {
        let mut evaluation = Evaluation::new(chain, rule.handle);
        let mut next = None;
        let place = |what: String| Place { chain: chain.to_owned(), rule: Some(rule.handle), what };
        for expression in &rule.exprs {
            let verdict = match evaluation.step(expression, self.view, &mut state) {
                Step::Match(Truth::No) => {
                    join(&mut next, state);
                    return Ok(next);
                }
                Step::Match(truth) => {
                    self.go_both_ways(truth, &mut state, &mut next, &mut evaluation);
                    continue;
                }
                Step::Divert(what, truth) => {
                    self.translation.get_or_insert_with(|| place(what));
                    self.go_both_ways(truth, &mut state, &mut next, &mut evaluation);
                    continue;
                }
                Step::Verdict(verdict) => verdict,
                Step::Drop(what) => {
                    self.drop(place(what), &state);
                    return Ok(next);
                }
                Step::Translate(what) => {
                    self.translation.get_or_insert_with(|| place(what));
                    self.accept(state);
                    return Ok(next);
                }
                Step::Anything { what, why } => {
                    // The packet may also come to the next statement or rule.
                    self.unknown(place(what), why.to_owned());
                    evaluation.forget_all("the result of an unknown statement");
                    join(&mut next, state.clone());
                    continue;
                }
                Step::Lookup => {
                    let Expr::Lookup { set, key, wanted } = expression else {
                        continue;
                    };
                    let (truth, found) = self.look_up(set, *key, *wanted, &mut evaluation)?;
                    if truth == Truth::No {
                        join(&mut next, state);
                        return Ok(next);
                    }
                    self.go_both_ways(truth, &mut state, &mut next, &mut evaluation);
                    match wanted {
                        Wanted::Member | Wanted::NoMember => continue,
                        Wanted::Verdict => {
                            let Some(verdict) = found.and_then(|found| found.verdict) else {
                                let why = state.doubt.take().unwrap_or_default();
                                self.unknown(place(format!("the map {set}")), why);
                                return Ok(next);
                            };
                            verdict
                        }
                        Wanted::Value(to) => {
                            match found.and_then(|found| found.value) {
                                Some(value) => {
                                    evaluation.registers.store(*to, &Bits::known(value));
                                }
                                None => evaluation.forget_all("a value of a map"),
                            }
                            continue;
                        }
                    }
                }
            };
            if verdict != Verdict::Continue {
                self.verdict(verdict, state, (&place, returned, &mut next), depth)?;
                return Ok(next);
            }
        }
        join(&mut next, state);
        Ok(next)
    }

    /// Looks up a key. Returns whether the expression matches, and the element.
    fn look_up(
        &mut self,
        name: &str,
        key: Register,
        wanted: Wanted,
        evaluation: &mut Evaluation<'_>,
    ) -> Result<(Truth, Option<Found>), R::Error> {
        let Some(set) = self.ruleset.set(name)? else {
            evaluation.doubt(format_args!("the set {name} cannot be decoded"));
            return Ok((Truth::Unknown, None));
        };
        if set.flags & libc::NFT_SET_EVAL as u32 != 0 {
            evaluation.doubt(format_args!("the set {name} is changed by packets"));
            return Ok((Truth::Unknown, None));
        }
        let key = evaluation.registers.load(key, set.key.1 as usize);
        let Some(key) = key.exact() else {
            return Ok((Truth::Unknown, None));
        };
        let found = match self.ruleset.find(name, &key)? {
            None => self.ruleset.find(name, &[])?,
            found => found,
        };
        if found.as_ref().is_some_and(|found| found.is_limited) {
            evaluation.doubt(format_args!("the set {name} has elements with limits"));
            return Ok((Truth::Unknown, found));
        }
        let truth = Truth::from(found.is_some()).inverted(wanted == Wanted::NoMember);
        Ok((truth, found))
    }

    /// If it is not certain that the packet comes further in the rule, lets it also go to the next.
    fn go_both_ways(
        &mut self,
        truth: Truth,
        state: &mut State,
        next: &mut Option<State>,
        evaluation: &mut Evaluation<'_>,
    ) {
        if truth == Truth::Unknown {
            let why = evaluation.reason();
            self.doubt.get_or_insert_with(|| why.clone());
            state.doubt = Some(why);
            join(next, state.clone());
        }
    }

    /// Follows a packet with a verdict other than continue.
    fn verdict(
        &mut self,
        verdict: Verdict,
        state: State,
        (place, returned, next): (impl Fn(String) -> Place, &mut Option<State>, &mut Option<State>),
        depth: usize,
    ) -> Result<(), R::Error> {
        match verdict {
            Verdict::Accept => self.accept(state),
            Verdict::Drop => self.drop(place("drop".to_owned()), &state),
            Verdict::Continue | Verdict::Break => join(next, state),
            Verdict::Return => {
                self.returns += 1;
                join(returned, state);
            }
            Verdict::Jump(chain) => {
                if let Some(state) = self.chain(&chain, state, depth + 1)? {
                    join(next, state);
                }
            }
            Verdict::Goto(chain) => {
                self.returns += 1;
                if let Some(state) = self.chain(&chain, state, depth + 1)? {
                    join(returned, state);
                }
            }
            Verdict::Queue | Verdict::Stolen | Verdict::Other(_) => {
                let why = "another program decides on queued packets".to_owned();
                self.unknown(place("queue".to_owned()), why);
            }
        }
        Ok(())
    }
}

/// Judges a packet by rules and elements that the attributes of any message have.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(attrs: &Attrs<'_>, view: &View<'_>) {
    struct Any<'a>(Rc<[DumpedRule]>, &'a Attrs<'a>);

    impl Ruleset for Any<'_> {
        type Error = std::convert::Infallible;

        fn chain(&mut self, _: &str) -> Result<Rc<[DumpedRule]>, Self::Error> {
            Ok(Rc::clone(&self.0))
        }

        fn set(&mut self, _: &str) -> Result<Option<DumpedSet>, Self::Error> {
            Ok(DumpedSet::parse(self.1))
        }

        fn find(&mut self, _: &str, _: &[u8]) -> Result<Option<Found>, Self::Error> {
            Ok(Found::parse(self.1))
        }
    }

    let Some(rule) = DumpedRule::parse(attrs) else { return };
    let _ = walk(50, &mut Any(vec![rule; 2].into(), attrs), view);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use super::*;
    use crate::nft::{AttachedChain, JudgedPacket, NfProto};

    const FIRST: Register = Register(0);

    /// Chains by name, without sets.
    #[derive(Default)]
    struct Rules(HashMap<&'static str, Rc<[DumpedRule]>>);

    impl Ruleset for Rules {
        type Error = Infallible;

        fn chain(&mut self, name: &str) -> Result<Rc<[DumpedRule]>, Infallible> {
            Ok(Rc::clone(&self.0[name]))
        }

        fn set(&mut self, _: &str) -> Result<Option<DumpedSet>, Infallible> {
            Ok(None)
        }

        fn find(&mut self, _: &str, _: &[u8]) -> Result<Option<Found>, Infallible> {
            Ok(None)
        }
    }

    impl Rules {
        fn with(mut self, name: &'static str, rules: Vec<Vec<Expr>>) -> Rules {
            let rules = (1..).zip(rules);
            let chain = || name.to_owned();
            let rule =
                |(handle, exprs)| DumpedRule { chain: chain(), handle, comment: None, exprs };
            self.0.insert(name, rules.map(rule).collect());
            self
        }

        fn judge(mut self) -> Judgement {
            let chain = AttachedChain {
                family: NfProto::Inet,
                table: "t".to_owned(),
                chain: "base".to_owned(),
                kind: "filter".to_owned(),
                hook: 2,
                priority: 0,
                drops_by_default: false,
                devices: Vec::new(),
                rules: 1,
            };
            let packet = JudgedPacket::new(6, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 80);
            let Ok(judged) = walk(MAX_RULES, &mut self, &View { chain: &chain, packet: &packet });
            judged
        }
    }

    fn drops() -> Expr {
        Expr::Verdict(Verdict::Drop)
    }

    fn sometimes() -> Expr {
        Expr::Other("limit".to_owned())
    }

    fn why(judgement: Judgement) -> (String, String) {
        match judgement.passing {
            Passing::May { place, why } => (place.to_string(), why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn statements_without_a_known_effect_leave_it_open() {
        for (expression, what, reason) in [
            (Expr::Other("synproxy".to_owned()), "synproxy", "hands the packet over"),
            (Expr::Other("new".to_owned()), "the expression new", "effect is not known"),
            (Expr::Verdict(Verdict::Queue), "queue", "another program decides"),
        ] {
            let judgement = Rules::default().with("base", vec![vec![expression]]).judge();
            assert!(judgement.translation.is_some());
            assert_eq!(judgement.mark, Mark::UNKNOWN);
            let (place, why) = why(judgement);
            assert_eq!(place, format!("{what} in the rule with handle 1 of chain base"));
            assert!(why.contains(reason), "{why}");
        }
        // They change nothing if the packet does not meet them.
        let rules =
            vec![vec![Expr::Verdict(Verdict::Accept)], vec![Expr::Reject { kind: 0, code: 0 }]];
        let judgement = Rules::default().with("base", rules).judge();
        assert_eq!((judgement.passing, judgement.translation), (Passing::Passes, None));
    }

    #[test]
    fn unreadable_sets_leave_it_open() {
        let lookup = |wanted| Expr::Lookup { set: "s".to_owned(), key: FIRST, wanted };
        let rules = Rules::default().with("base", vec![vec![lookup(Wanted::Member), drops()]]);
        let (place, reason) = why(rules.judge());
        assert_eq!(place, "drop in the rule with handle 1 of chain base");
        assert_eq!(reason, "the set s cannot be decoded (handle 1 of chain base)");
        let (place, reason) =
            why(Rules::default().with("base", vec![vec![lookup(Wanted::Verdict)]]).judge());
        assert_eq!(place, "the map s in the rule with handle 1 of chain base");
        assert_eq!(reason, "the set s cannot be decoded (handle 1 of chain base)");
    }

    #[test]
    fn reason_is_the_match_that_decides() {
        // The first rule changes nothing, in either way.
        let jump = Expr::Verdict(Verdict::Jump("empty".to_owned()));
        let rules = vec![
            vec![sometimes(), jump],
            vec![Expr::Meta { to: FIRST, key: libc::NFT_META_MARK }, mark(), drops()],
        ];
        let rules = Rules::default().with("base", rules).with("empty", Vec::new());
        assert_eq!(why(rules.judge()).1, "the mark is not known (handle 2 of chain base)");
        // The second rule has an open result because of the first.
        let set = Expr::SetMeta { from: FIRST, key: libc::NFT_META_MARK };
        let value = |mark: u32| Expr::Value { to: FIRST, bytes: mark.to_ne_bytes().to_vec() };
        let rules = vec![
            vec![value(0), set.clone()],
            vec![sometimes(), value(1), set],
            vec![Expr::Meta { to: FIRST, key: libc::NFT_META_MARK }, mark(), drops()],
        ];
        let reason = why(Rules::default().with("base", rules).judge()).1;
        assert_eq!(reason, "whether limit matches is not known (handle 2 of chain base)");
    }

    /// Matches the mark 1.
    fn mark() -> Expr {
        Expr::equals(FIRST, 1_u32.to_ne_bytes())
    }

    #[test]
    fn work_is_bounded() {
        // Two jumps per chain would be 2^16 ways, and a loop would not end.
        let names = ["base", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
        let mut rules = Rules::default().with("n", vec![vec![drops(); 1]; 1]);
        for pair in names.windows(2) {
            let jump = || vec![sometimes(), Expr::Verdict(Verdict::Jump(pair[1].to_owned()))];
            rules = rules.with(pair[0], vec![jump(), jump()]);
        }
        let (place, _) = why(rules.judge());
        assert!(!place.is_empty());
        let again = Expr::Verdict(Verdict::Jump("base".to_owned()));
        let (_, reason) = why(Rules::default().with("base", vec![vec![again]]).judge());
        assert!(reason.contains("nested too deeply"), "{reason}");
        let rules = vec![vec![Expr::Counter]; MAX_RULES + 1];
        let (_, reason) = why(Rules::default().with("base", rules).judge());
        assert!(reason.contains("more than 10000 rules"), "{reason}");
    }
}
