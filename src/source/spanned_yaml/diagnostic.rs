//! Diagnostics about documents: the problem, its place, and the remedy.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The consequence of a [`Diagnostic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A valid field has no effect.
    Note,
    /// A part is ignored, the rest is used.
    Warning,
    /// The whole object (or file, or configuration) is not used.
    Error,
}

/// A problem of a document, with its place and the remedy.
///
/// All its texts are bounded in length, for any input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The consequence of the problem.
    pub severity: Severity,
    /// The file, if the document is in a file.
    pub file: Option<Arc<Path>>,
    /// The line in that file, counted from 1, if known.
    pub line: Option<u32>,
    /// The kind and the name of the object, if any: `Service default/web`.
    pub object: Option<String>,
    /// The path of the field; empty for the whole document.
    pub field: String,
    /// An excerpt of the value, if there is one.
    pub value: Option<String>,
    /// The problem and the remedy.
    pub reason: String,
}

/// Long enough for an IPv6 address or a name, short enough for a log line.
const EXCERPT_CHARS: usize = 80;
const REASON_CHARS: usize = 400;

impl Diagnostic {
    /// Makes a diagnostic about `field`. The other methods add the place, the object and the value.
    pub fn new(
        severity: Severity,
        field: impl Into<String>,
        reason: impl Into<String>,
    ) -> Diagnostic {
        let (field, reason) = (field.into(), clip(reason.into(), REASON_CHARS));
        Diagnostic { severity, file: None, line: None, object: None, field, value: None, reason }
    }

    /// Adds an excerpt of the value.
    #[must_use]
    pub fn with_value(mut self, value: impl fmt::Display) -> Diagnostic {
        self.value = Some(excerpt(&value.to_string()));
        self
    }

    /// Adds the kind and the name of the object.
    #[must_use]
    pub fn of_object(mut self, object: impl fmt::Display) -> Diagnostic {
        self.object = Some(clip(object.to_string(), EXCERPT_CHARS));
        self
    }

    /// Adds the file and the line.
    #[must_use]
    pub fn in_file(mut self, file: &Arc<Path>, line: Option<u32>) -> Diagnostic {
        self.file = Some(file.clone());
        self.line = line;
        self
    }

    /// Logs the diagnostic, with its parts as fields.
    pub fn log(&self) {
        // tracing fixes the level of an event at compile time.
        macro_rules! event_at {
            ($level:ident) => {
                tracing::$level!(
                    file = self.file.as_ref().map(|f| tracing::field::display(f.display())),
                    line = self.line,
                    object = self.object,
                    field = (!self.field.is_empty()).then(|| tracing::field::display(&self.field)),
                    value = self.value,
                    "{}",
                    self.reason
                )
            };
        }
        match self.severity {
            Severity::Note => event_at!(info),
            Severity::Warning => event_at!(warn),
            Severity::Error => event_at!(error),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        match (&self.value, self.field.is_empty()) {
            (Some(value), false) => write!(f, "{} = {value}: ", self.field)?,
            (Some(value), true) => write!(f, "{value}: ")?,
            (None, false) => write!(f, "{}: ", self.field)?,
            (None, true) => {}
        }
        f.write_str(&self.reason)
    }
}

/// Returns an excerpt of a text from outside for a message: with escaped control characters, cut if
/// it is long, and in quotes if its ends would be invisible.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let cut = text.char_indices().nth(EXCERPT_CHARS).map(|(end, _)| end);
    let shown = &text[..cut.unwrap_or(text.len())];
    let mut excerpt = if shown.is_empty() || shown.contains([' ', '"', '\'']) {
        format!("{shown:?}")
    } else {
        shown.escape_debug().to_string()
    };
    if cut.is_some() {
        excerpt.push_str(&format!("… ({} bytes)", text.len()));
    }
    excerpt
}

fn clip(mut text: String, chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(chars) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_where_what_and_why() {
        let file: Arc<Path> = Path::new("svc/web.yaml").into();
        let problem = Diagnostic::new(Severity::Error, "spec", "must be a mapping")
            .with_value("x\ny")
            .of_object("Service default/web")
            .in_file(&file, Some(7));
        assert_eq!(
            problem.to_string(),
            r"svc/web.yaml:7: Service default/web: spec = x\ny: must be a mapping"
        );
    }

    #[test]
    fn excerpts_show_where_they_end() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("", "\"\""),
            (" 10.0.0.1", "\" 10.0.0.1\""),
            ("a\tb\u{7}", "a\\tb\\u{7}"),
        ] {
            assert_eq!(excerpt(text), expected);
        }
    }

    #[test]
    fn texts_are_bounded_and_cut_between_characters() {
        let long = "é".repeat(1_000_000);
        let problem =
            Diagnostic::new(Severity::Note, "", long.as_str()).with_value(&long).of_object(&long);
        assert!(problem.to_string().len() < 2_000);
        assert!(problem.to_string().contains("(2000000 bytes)"));
    }
}
