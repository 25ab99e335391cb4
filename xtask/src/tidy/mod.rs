//! `cargo xtask tidy`: what the compiler does not check about how the source is arranged.
//!
//! Each rule is a function from a file's text to what is wrong with it, and has a test that shows
//! it a bad sample.

mod budget;
mod licences;
mod names;
mod text;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::command::{command, repository, stdout};

/// Check every file of the repository and every dependency.
pub(crate) fn run() -> Result<()> {
    let mut violations = Vec::new();
    let mut files = 0;
    let (mut rooms, mut types) = (BTreeMap::new(), names::Types::new());
    for path in &tracked_files()? {
        let Some(text) = read_text(path)? else {
            continue;
        };
        files += 1;
        violations.extend(text::check(path, &text));
        budget::add(&mut rooms, path, &text)?;
        names::add(&mut types, path, &text);
    }
    violations.extend(budget::check(&read("budget.toml")?, &rooms)?);
    violations.extend(names::check(&types));
    let dependencies = licences::dependencies()?;
    violations.extend(licences::check(&dependencies, &read("deny.toml")?)?);

    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} violations of the rules in xtask/src/tidy", violations.len());
    }
    println!("tidy: {files} files and {} dependencies are in order", dependencies.len());
    Ok(())
}

/// The files that are in the repository, or would be after the next commit.
pub(crate) fn tracked_files() -> Result<Vec<String>> {
    let listed = stdout(command("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))
    .context("cannot list the files of the repository")?;
    let files: Vec<String> =
        listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    if files.is_empty() {
        bail!("git lists no files here, so nothing was checked");
    }
    Ok(files)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

/// The file's text; none for one that is not text, or that was deleted but is still in the index.
fn read_text(path: &str) -> Result<Option<String>> {
    match fs::read(repository().join(path)) {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
    }
}
