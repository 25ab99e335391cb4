//! Colour and weight for a terminal; nothing of either in a pipe.

use std::env;
use std::fmt::Display;
use std::io::{IsTerminal as _, stdout};

/// What stdout can show.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    rich: bool,
}

impl Style {
    /// Rich on a terminal, unless it or its user asks for plain text (`TERM=dumb`, `NO_COLOR`).
    pub(crate) fn of_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { rich: stdout().is_terminal() && !refused }
    }

    /// Whether stdout shows colour and block characters.
    pub(crate) fn is_rich(self) -> bool {
        self.rich
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    pub(crate) fn red(self, text: impl Display) -> String {
        self.paint("31", text)
    }

    pub(crate) fn green(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    pub(crate) fn cyan(self, text: impl Display) -> String {
        self.paint("36", text)
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.rich { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
