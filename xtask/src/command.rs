//! Running other programs: found where an administrator's would be, named when they fail.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where Debian keeps `ip`, `nft` and `conntrack`. An ordinary user's PATH lacks these, and root's
/// does too after a plain `su`.
const ADMIN_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// PATH with the administrator's directories appended.
pub(crate) fn search_path() -> OsString {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&inherited).collect();
    for directory in ADMIN_DIRECTORIES {
        if !directories.iter().any(|known| known == Path::new(directory)) {
            directories.push(directory.into());
        }
    }
    // Fails only for a directory name with a colon, which came out of no PATH.
    env::join_paths(directories).unwrap_or(inherited)
}

/// The file that `program` would run, if there is one.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&search_path())
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or(xtask.clone(), Path::to_path_buf)
}

/// Reads a file of the repository.
pub(crate) fn repository_file(path: &str) -> Result<Vec<u8>> {
    fs::read(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

/// A command that runs in the repository's root, with administrators' programs on its PATH.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(repository()).env("PATH", search_path());
    command
}

/// The cargo that runs us, with the environment of a shell: some build scripts run again, and
/// all that depends on them is built again, where these variables are others than the last time.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in env::vars_os().filter(|(name, _)| of_package(name)) {
        cargo.env_remove(name);
    }
    cargo
}

/// Run with our own output, and fail unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", describe(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", describe(command));
    }
    Ok(())
}

/// Run quietly; the output, whatever the exit status.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{}`", describe(command)))
}

/// Run quietly; what it printed on stdout, or an error with what it printed on stderr.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            describe(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command line as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut line = name.to_string_lossy().into_owned();
    for argument in command.get_args() {
        // Writing to a String cannot fail.
        let _ = write!(line, " {}", argument.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_was_run_and_what_it_said() {
        let error = stdout(command("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains("broken"), "{text}");
    }
}
