//! The configuration: invalid values, unknown fields, and fields without effect.

use super::{Judgement, NodeFacts, fail, ok, some_of, warn};
use crate::source::spanned_yaml::Severity;

pub(super) fn check(facts: &NodeFacts<'_>) -> Judgement {
    let of = |severity| facts.problems.iter().filter(move |problem| problem.severity == severity);
    let [warnings, notes] =
        [Severity::Warning, Severity::Note].map(|severity| of(severity).count());
    if facts.effective.is_err() {
        let text = format!("invalid: {}", some_of(of(Severity::Error)));
        return fail(
            text,
            "correct these fields; with this configuration, the agent exits with code 64",
        );
    }
    if warnings > 0 {
        let text = format!("valid, but {}", some_of(of(Severity::Warning)));
        return warn(text, "correct or remove these fields");
    }
    match notes {
        0 => ok("valid"),
        _ => ok(format!("valid; {}", some_of(of(Severity::Note)))),
    }
}
