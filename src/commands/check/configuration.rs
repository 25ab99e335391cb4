//! The configuration: invalid values, unknown fields, and fields without effect.

use super::{Line, some_of};
use crate::source::spanned_yaml::{Diagnostic, Severity};

const NAME: &str = "configuration";

pub(super) fn judge(is_valid: bool, problems: &[Diagnostic]) -> Line {
    let of = |severity| problems.iter().filter(move |problem| problem.severity == severity);
    let [warnings, notes] =
        [Severity::Warning, Severity::Note].map(|severity| of(severity).count());
    if !is_valid {
        let text = format!("invalid: {}", some_of(of(Severity::Error)));
        return Line::fail(NAME, text, "correct this; the agent would exit with code 64");
    }
    if warnings > 0 {
        let text = format!("valid, but {}", some_of(of(Severity::Warning)));
        return Line::warn(NAME, text, "correct or remove these fields");
    }
    match notes {
        0 => Line::ok(NAME, "valid"),
        _ => Line::ok(NAME, format!("valid; {}", some_of(of(Severity::Note)))),
    }
}
