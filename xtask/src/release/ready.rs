//! Whether the source is ready to be released.

use anyhow::{Result, ensure};

use super::source::{Source, VERSION};
use crate::command::repository_file;

/// Fails with everything that is missing. `tag` is the tag that is released, if there is one yet.
pub(super) fn check(source: &Source, tag: Option<&str>) -> Result<()> {
    let changelog = String::from_utf8_lossy(&repository_file("CHANGELOG.md")?).into_owned();
    let problems = problems(source, tag, &changelog);
    ensure!(
        problems.is_empty(),
        "this is not ready to be released (--snapshot builds it all the same):\n  {}",
        problems.join("\n  ")
    );
    Ok(())
}

fn problems(source: &Source, tag: Option<&str>, changelog: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(tag) = tag
        && tag.strip_prefix('v') != Some(VERSION)
    {
        problems.push(format!(
            "the tag is {tag}, and the version in Cargo.toml {VERSION}: tag the commit v{VERSION}, or \
             set `version` under [workspace.package]"
        ));
    }
    let is_section = |line: &str| {
        let title = line.strip_prefix("## ").unwrap_or_default();
        let version = title.split(' ').next().unwrap_or_default();
        version.trim_matches(['[', ']']) == VERSION
    };
    if !changelog.lines().any(is_section) {
        problems.push(format!(
            "CHANGELOG.md has no section \"## {VERSION}\": give \"Unreleased\" the version and the date"
        ));
    }
    if source.revision.as_ref().is_some_and(|revision| revision.ends_with("-dirty")) {
        problems.push("files differ from the commit: commit them, or undo the changes".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_named() {
        let of = |revision: &str, tag: Option<&str>, changelog: &str| {
            let source = Source { revision: Some(revision.to_owned()), time: 0 };
            problems(&source, tag, changelog)
        };
        let tag = format!("v{VERSION}");
        for title in [format!("## {VERSION}"), format!("## [{VERSION}] - 2026-11-24")] {
            assert_eq!(of("1f2e", Some(&tag), &format!("# Changelog\n\n{title}\n")), [""; 0]);
        }
        let all = of("1f2e-dirty", Some("v9.9.9"), "## Unreleased\n## 0.1.00\n");
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].contains("v9.9.9") && all[1].contains("CHANGELOG.md"), "{all:?}");
        assert!(all[2].contains("commit them"), "{all:?}");
        assert_eq!(of("1f2e", Some(VERSION), &format!("## {VERSION}")).len(), 1, "no v");
    }
}
