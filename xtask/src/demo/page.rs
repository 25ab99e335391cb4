//! What the demo prints: headings, bars, and claims with whether they hold.

use std::fmt::Display;

use anyhow::{Result, bail};
use shunt_testbed::Tally;

use crate::style::Style;

/// The columns of a bar that has everything.
const BAR: usize = 40;

/// The demo's output, and the verdict over it.
pub(super) struct Page {
    style: Style,
    sections: usize,
    broken: Vec<String>,
}

impl Page {
    pub(super) fn new(style: Style) -> Self {
        Self { style, sections: 0, broken: Vec::new() }
    }

    /// The next numbered heading.
    pub(super) fn section(&mut self, title: impl Display) {
        self.sections += 1;
        println!("\n{}", self.style.bold(format!("{}. {title}", self.sections)));
    }

    /// What the lines that follow are about.
    pub(super) fn subject(&self, subject: impl Display) {
        println!("   {}", self.style.bold(subject));
    }

    /// A line of plain text.
    pub(super) fn line(&self, text: impl Display) {
        println!("   {text}");
    }

    /// A line of less weight.
    pub(super) fn aside(&self, text: impl Display) {
        println!("   {}", self.style.dim(text));
    }

    /// Say whether something that ought to be so is so.
    pub(super) fn claim(&mut self, holds: bool, claim: impl Display) {
        let mark = match (holds, self.style.is_rich()) {
            (true, true) => self.style.green("✓"),
            (false, true) => self.style.red("✗"),
            (true, false) => "ok:".into(),
            (false, false) => "FAILED:".into(),
        };
        println!("     {mark} {claim}");
        if !holds {
            self.broken.push(claim.to_string());
        }
    }

    /// A bar for each of `backends`, and a line for each way in which connections failed.
    pub(super) fn bars(&self, tally: &Tally, backends: &[&str]) {
        for backend in backends {
            println!("     {}", bar(self.style, backend, tally.reached(backend), tally.total()));
        }
        for (failure, count) in tally.failures() {
            println!("     {}", self.style.red(format!("{count} × {failure}")));
        }
    }

    /// Text as another program printed it.
    pub(super) fn quote(&self, text: &str) {
        for line in text.lines() {
            println!("   {}", self.style.cyan(line));
        }
    }

    /// The verdict. If a claim does not hold, that is an error, and `log` may say why.
    pub(super) fn finish(self, log: &str) -> Result<()> {
        let Some(first) = self.broken.first() else {
            println!("\n{}", self.style.green("Everything is as it should be."));
            return Ok(());
        };
        println!("\n{}", self.style.bold("The agent's log"));
        self.quote(log);
        println!();
        let count = self.broken.len();
        bail!("the demo shows a fault: {count} of its claims do not hold, first \"{first}\"");
    }
}

/// `pod-1  ██████████        334   33.4 %`
fn bar(style: Style, name: &str, count: usize, total: usize) -> String {
    let share = if total == 0 { 0.0 } else { count as f64 / total as f64 };
    let drawn = if style.is_rich() {
        blocks(share)
    } else {
        "#".repeat((share * BAR as f64).round() as usize)
    };
    let padding = " ".repeat(BAR.saturating_sub(drawn.chars().count()));
    format!("{name:<8}{}{padding} {count:>6} {:>6.1} %", style.cyan(drawn), share * 100.0)
}

/// A bar with eighths of a column.
fn blocks(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * BAR as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_share() {
        assert_eq!(
            bar(Style::PLAIN, "pod-1", 250, 1000),
            "pod-1   ##########                                  250   25.0 %"
        );
        assert_eq!(blocks(1.0).chars().count(), BAR);
        assert_eq!(blocks(0.0), "");
        assert_eq!(blocks(0.5 / BAR as f64), "▌");
    }

    #[test]
    fn a_bar_of_nothing_is_empty() {
        assert!(bar(Style::PLAIN, "pod-1", 0, 0).contains(" 0.0 %"));
    }

    #[test]
    fn a_claim_that_does_not_hold_fails_the_demo() {
        let mut page = Page::new(Style::PLAIN);
        page.claim(true, "the sky is above");
        page.claim(false, "pigs fly");
        let error = page.finish("").unwrap_err().to_string();
        assert!(error.contains("pigs fly") && !error.contains("sky"), "{error}");
    }
}
