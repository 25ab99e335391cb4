//! What the demo prints: headings, and claims with whether they hold.

use std::fmt::Display;

use anyhow::{Result, bail};

use crate::style::Style;

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

    /// A line of plain text.
    pub(super) fn line(&self, text: impl Display) {
        println!("   {text}");
    }

    /// Say whether something that ought to be so is so.
    pub(super) fn claim(&mut self, holds: bool, claim: impl Display) {
        let mark = match (holds, self.style.is_rich()) {
            (true, true) => self.style.green("✓"),
            (false, true) => self.style.red("✗"),
            (true, false) => "ok:".into(),
            (false, false) => "FAILED:".into(),
        };
        println!("   {mark} {claim}");
        if !holds {
            self.broken.push(claim.to_string());
        }
    }

    /// The same without a word, unless it does not hold.
    pub(super) fn claim_unsaid(&mut self, holds: bool, claim: impl Display) {
        if !holds {
            self.claim(false, claim);
        }
    }

    /// Text as another program printed it.
    pub(super) fn quoted(&self, text: &str) -> String {
        self.style.cyan(text)
    }

    /// The verdict. If a claim does not hold, that is an error, and `log` may say why.
    pub(super) fn finish(self, log: &str) -> Result<()> {
        let Some(first) = self.broken.first() else {
            println!("\n{}", self.style.green("Everything is as it should be."));
            return Ok(());
        };
        println!("\n{}", self.style.bold("The agent's log"));
        println!("{log}\n");
        let count = self.broken.len();
        bail!("the demo shows a fault: {count} of its claims do not hold, first \"{first}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_does_not_hold_fails_the_demo() {
        let mut page = Page::new(Style::PLAIN);
        page.claim(true, "the sky is above");
        page.claim(false, "pigs fly");
        let error = page.finish("").unwrap_err().to_string();
        assert!(error.contains("pigs fly") && !error.contains("sky"), "{error}");
    }
}
