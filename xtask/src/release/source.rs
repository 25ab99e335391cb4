//! The source that a release is made of: its version, commit and time, in a checkout and in an
//! unpacked archive of the source.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;

use crate::command::{command, repository, repository_file, stdout};
use crate::tree::Tree;

/// The version of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A file in which `git archive` writes the commit.
const ARCHIVE: &str = "xtask/src/release/archive.txt";

/// Folders at the root that an archive does not have, by .gitignore.
const NOT_SOURCE: [&str; 3] = [".git", "target", "proptest-regressions"];

/// What is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The commit, with a mark where files were changed since; none if it is not known.
    pub(crate) revision: Option<String>,
    /// The time of the commit, in seconds since 1970. It stands for the time of the build, which
    /// would make each build another one.
    pub(crate) time: u64,
}

impl Source {
    /// Reads `SHUNT_COMMIT` and `SOURCE_DATE_EPOCH`, else git, else what `git archive` wrote.
    pub(crate) fn read() -> Result<Self> {
        let time = match variable("SOURCE_DATE_EPOCH") {
            Some(seconds) => Some(seconds),
            None if in_git() => Some(git(&["log", "-1", "--format=%ct"])?),
            None => archived("time")?,
        };
        let time = match time {
            Some(seconds) => seconds
                .parse()
                .with_context(|| format!("SOURCE_DATE_EPOCH={seconds} is no number of seconds"))?,
            None => bail!(
                "the time of the source is not known: this is no git checkout and no `git archive`; \
                 give SOURCE_DATE_EPOCH, in seconds since 1970"
            ),
        };
        Ok(Self { revision: revision()?, time })
    }

    /// Returns the commit for a person.
    pub(crate) fn commit(&self) -> &str {
        self.revision.as_deref().unwrap_or("unknown")
    }

    /// Returns the time as RFC 3339 writes it.
    pub(crate) fn rfc3339(&self) -> Result<String> {
        let seconds = i64::try_from(self.time).context("SOURCE_DATE_EPOCH is too large")?;
        Ok(Timestamp::from_second(seconds).context("SOURCE_DATE_EPOCH is too large")?.to_string())
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn in_git() -> bool {
    repository().join(".git").exists()
}

/// Returns the commit, if it is known.
pub(crate) fn revision() -> Result<Option<String>> {
    match variable("SHUNT_COMMIT") {
        Some(commit) => Ok(Some(commit)),
        None if in_git() => {
            git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]).map(Some)
        }
        None => archived("commit"),
    }
}

fn git(arguments: &[&str]) -> Result<String> {
    let text = stdout(command("git").args(arguments))
        .context("cannot read the commit; give SHUNT_COMMIT and SOURCE_DATE_EPOCH")?;
    Ok(text.trim().to_owned())
}

/// A field of the file that `git archive` fills.
fn archived(name: &str) -> Result<Option<String>> {
    Ok(field(&String::from_utf8_lossy(&repository_file(ARCHIVE)?), name))
}

fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    (!value.starts_with('$')).then(|| value.to_owned())
}

/// Returns the files of the source: those of the commit, or those of an unpacked archive.
pub(super) fn files() -> Result<Tree> {
    let mut tree = Tree::default();
    if !in_git() {
        walk(&repository(), "", &mut tree)?;
        return Ok(tree);
    }
    let mut git = command("git");
    git.args(["archive", "--format=tar", "HEAD"]).stdin(Stdio::null());
    let archive = git.output().context("cannot run git archive")?;
    ensure!(archive.status.success(), "{}", String::from_utf8_lossy(&archive.stderr).trim());
    let mut archive = tar::Archive::new(&archive.stdout[..]);
    for entry in archive.entries()? {
        let mut entry = entry.context("cannot read what git archive wrote")?;
        let path = entry.path()?.display().to_string();
        if entry.header().entry_type().is_file() {
            let executable = entry.header().mode()? & 0o100 != 0;
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content)?;
            put(&mut tree, &path, content, executable)?;
        }
    }
    Ok(tree)
}

fn walk(folder: &Path, prefix: &str, tree: &mut Tree) -> Result<()> {
    let unreadable = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if NOT_SOURCE.contains(&path.as_str()) {
            continue;
        }
        let kind = entry.file_type().with_context(unreadable)?;
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), tree)?;
        } else if kind.is_file() {
            let content = fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
            let executable = entry.metadata()?.permissions().mode() & 0o100 != 0;
            put(tree, &path, content, executable)?;
        }
    }
    Ok(())
}

fn put(tree: &mut Tree, path: &str, content: Vec<u8>, executable: bool) -> Result<()> {
    match executable {
        true => tree.program(path, content),
        false => tree.file(path, content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Item;

    #[test]
    fn times_are_written_as_rfc_3339() {
        let at = |time| Source { revision: None, time }.rfc3339();
        assert_eq!(at(951_782_400).unwrap(), "2000-02-29T00:00:00Z");
        assert!(at(u64::MAX).is_err());
    }

    #[test]
    fn an_archive_names_its_commit_and_a_checkout_does_not() {
        let filled = "commit: 1f2e\ntime: 17\n";
        assert_eq!(field(filled, "commit").as_deref(), Some("1f2e"));
        assert_eq!(field(filled, "time").as_deref(), Some("17"));
        assert_eq!(field("commit: $Format:%H$\n", "commit"), None);
        assert_eq!(archived("time").unwrap().is_none(), in_git());
    }

    #[test]
    fn a_checkout_knows_its_files() {
        let files = files().unwrap();
        let paths: Vec<&str> = files.items().map(|(path, _)| path).collect();
        for path in ["Cargo.lock", "src/main.rs", ".ci/run", ARCHIVE] {
            assert!(paths.contains(&path), "{path}");
        }
        assert!(!paths.iter().any(|path| path.starts_with("target")));
        let ci = files.items().find(|(path, _)| *path == ".ci/run");
        assert!(matches!(ci, Some((_, Item::File { mode: 0o755, .. }))));
    }
}
