//! What `shunt check` prints.

use std::process::Output;

use anyhow::{Context, Result};
use serde_json::Value;

/// The lines of a run of `shunt check --output=json`.
pub struct CheckLines(pub Vec<Value>);

impl CheckLines {
    /// Reads them. The exit code must say whether any fails.
    #[track_caller]
    pub fn read(output: &Output) -> Result<Self> {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<Value> =
            serde_json::from_slice(&output.stdout).context(stderr.into_owned())?;
        let fails = lines.iter().any(|line| line["result"] == "FAIL");
        assert_eq!(output.status.code(), Some(fails.into()), "{lines:#?}");
        Ok(Self(lines))
    }

    /// Asserts the result of a line, and that its text and remedy have these parts.
    #[track_caller]
    pub fn has(&self, name: &str, result: &str, parts: &[&str]) {
        let line = self.0.iter().find(|line| line["name"] == name).unwrap_or(&Value::Null);
        let text = format!("{} → {}", line["text"], line["remedy"]);
        let has = parts.iter().all(|part| text.contains(part));
        assert!(line["result"] == result && has, "{parts:?}: {line:#}");
        assert_eq!(line["remedy"].is_string(), ["WARN", "FAIL"].contains(&result), "{line:#}");
    }
}
