//! `docs/kernels.md`: the features of kernels, as probes inside of them found.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, bail};

use super::kernel::LINES;
use crate::command::repository;

/// The generated file.
const FILE: &str = "docs/kernels.md";

const HEAD: &str = "\
# Kernels

The kernels that `cargo xtask vm-test` tests, and their features. `cargo xtask vm-test --write-docs` writes this table from
probes inside of them. A test fails on a kernel with another result.

`cargo xtask ci` tests 6.1, 6.12 and 7. The others are tested on request (`--kernel 5.10`). 5.14 and 5.15 are Ubuntu's, the
others Debian's.
";

/// Names of features as probes have them (`vm-tests/src/features.rs`), for people, and what they mean
/// to us.
const FEATURES: [(&str, &str, &str); 8] = [
    (
        "owner",
        "tables with an owner",
        "used for the tables of `shunt trace`: the kernel deletes them with their owner",
    ),
    (
        "persist",
        "… that outlive the owner",
        "used where it exists: no other process can modify the tables. Elsewhere the agent checks once a \
         second, and repairs them",
    ),
    ("fib", "`fib` expressions", "used for node ports on all local addresses"),
    (
        "reject-in-prerouting",
        "`reject` in prerouting",
        "used for frontends without endpoints, and for ports that a ClusterIP does not have",
    ),
    ("flow-tables", "flow tables", "not used"),
    (
        "end-of-batch-ack",
        "an acknowledgement of the end of a transaction",
        "not needed: no error means success",
    ),
    (
        "destroy",
        "`destroy`, deletion of a missing object without an error",
        "not needed: the agent has a record of all objects",
    ),
    (
        "element-time-out",
        "a new timeout for an existing element",
        "not needed: rules refresh the entries of session affinity",
    ),
];

/// Answers by the name of the feature and that of the line of kernels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Table(BTreeMap<(String, String), bool>);

impl Table {
    /// What the file says; nothing if there is none.
    pub(super) fn read() -> Result<Self> {
        match fs::read_to_string(repository().join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {FILE}")),
        }
    }

    /// Write the file.
    pub(super) fn write(&self) -> Result<()> {
        fs::write(repository().join(FILE), HEAD.to_owned() + "\n" + &self.text())
            .with_context(|| format!("cannot write {FILE}"))
    }

    /// Take these answers of a kernel instead of what was there. They must be to all questions.
    pub(super) fn set(&mut self, kernel: &str, answers: &[(String, bool)]) -> Result<()> {
        for (feature, _, _) in FEATURES {
            let Some((_, answer)) = answers.iter().find(|(name, _)| name == feature) else {
                bail!("kernel {kernel} did not say whether it has `{feature}`");
            };
            self.0.insert((feature.to_owned(), kernel.to_owned()), *answer);
        }
        Ok(())
    }

    /// True without any answer.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Take all answers of another table instead of what was there.
    pub(super) fn replace(&mut self, by: Self) {
        self.0.extend(by.0);
    }

    /// Fails unless the file says the same.
    pub(super) fn check(&self) -> Result<()> {
        let written = Self::read()?;
        for ((feature, kernel), answer) in &self.0 {
            if written.0.get(&(feature.clone(), kernel.clone())) != Some(answer) {
                bail!(
                    "kernel {kernel} says {} to `{feature}`, and {FILE} does not; if that is as it \
                     should be, run `cargo xtask vm-test --write-docs`",
                    word(Some(answer))
                );
            }
        }
        Ok(())
    }

    /// The table as Markdown.
    pub(super) fn text(&self) -> String {
        let kernels: Vec<&str> = LINES.iter().map(|line| line.name).collect();
        let kernels: Vec<&str> = kernels
            .into_iter()
            .filter(|kernel| self.0.keys().any(|(_, known)| known == kernel))
            .collect();
        let mut text = format!("| feature | {} | in shunt |\n", kernels.join(" | "));
        text += &format!("| --- |{} --- |\n", " --- |".repeat(kernels.len()));
        for (feature, name, meaning) in FEATURES {
            let answers = kernels
                .iter()
                .map(|kernel| word(self.0.get(&(feature.to_owned(), (*kernel).to_owned()))));
            let answers: Vec<&str> = answers.collect();
            text += &format!("| {name} | {} | {meaning} |\n", answers.join(" | "));
        }
        text
    }

    fn parse(text: &str) -> Result<Self> {
        let mut rows = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
        let head = rows.next().unwrap_or_default();
        let mut table = Self::default();
        for row in rows.skip(1) {
            let named = FEATURES.iter().find(|(_, name, _)| Some(name) == row.first());
            let (feature, _, _) = named.with_context(|| {
                format!(
                    "{FILE} has a row that is not known; run `cargo xtask vm-test --write-docs`"
                )
            })?;
            for (kernel, answer) in head.iter().zip(&row) {
                if let "yes" | "no" = *answer {
                    let key = ((*feature).to_owned(), (*kernel).to_owned());
                    table.0.insert(key, *answer == "yes");
                }
            }
        }
        Ok(table)
    }
}

fn word(answer: Option<&bool>) -> &'static str {
    match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(owner: bool) -> Vec<(String, bool)> {
        FEATURES
            .iter()
            .map(|(name, _, _)| ((*name).to_owned(), owner || *name != "owner"))
            .collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut table = Table::default();
        table.set("5.10", &answers(false)).unwrap();
        table.set("7", &answers(true)).unwrap();
        let text = HEAD.to_owned() + &table.text();
        assert!(text.contains("| tables with an owner | no | yes |"), "{text}");
        assert_eq!(Table::parse(&text).unwrap(), table);
    }

    #[test]
    fn an_answer_that_is_missing_is_named() {
        let error = Table::default().set("7", &answers(true)[1..]).unwrap_err();
        assert!(error.to_string().contains("`owner`"), "{error}");
    }

    #[test]
    fn the_file_is_as_it_would_be_written() {
        let text = fs::read_to_string(repository().join(FILE)).unwrap();
        assert_eq!(text, HEAD.to_owned() + "\n" + &Table::parse(&text).unwrap().text());
    }

    #[test]
    fn the_file_knows_all_default_kernels() {
        let table = Table::read().unwrap();
        for kernel in super::super::kernel::DEFAULT {
            for (feature, _, _) in FEATURES {
                assert!(
                    table.0.contains_key(&(feature.into(), kernel.into())),
                    "{feature} {kernel}"
                );
            }
        }
    }
}
