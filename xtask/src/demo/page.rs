//! What the demo prints: headings, and claims that hold. One that does not ends the demo.

use std::fmt::Display;

use anyhow::{Result, ensure};

use crate::style::Style;

/// The demo's output.
pub(super) struct Page {
    pub(super) style: Style,
    pub(super) sections: usize,
}

impl Page {
    /// The next numbered heading.
    pub(super) fn section(&mut self, title: impl Display) {
        self.sections += 1;
        println!("\n{}", self.style.bold(format!("{}. {title}", self.sections)));
    }

    /// A line of plain text.
    pub(super) fn line(&self, text: impl Display) {
        println!("   {text}");
    }

    /// Says what ought to be so, if it is so.
    pub(super) fn claim(&self, holds: bool, claim: impl Display) -> Result<()> {
        ensure!(holds, "the demo found a fault; this is not true: {claim}");
        let mark = if self.style.is_rich() { self.style.green("✓") } else { "ok:".into() };
        println!("   {mark} {claim}");
        Ok(())
    }
}
