//! Network namespaces of our own: as root, or as root of a user namespace.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::command::{command, output};

/// Needs a module of its own.
const NAT: &str =
    "add table ip probe; add chain ip probe nat { type nat hook prerouting priority -100; }";

/// The words before a command line that give it a network namespace of its own, with the loopback
/// device up, and the rights of root in it. An error says why there can be none.
pub(crate) fn isolation() -> Result<Vec<&'static str>> {
    let unshare = if geteuid().is_root() { "-n" } else { "-Urn" };
    let words =
        vec!["unshare", unshare, "--", "sh", "-c", r#"ip link set lo up && exec "$@""#, "sh"];
    let tried = output(command(words[0]).args(&words[1..]).args(["nft", NAT]))?;
    if !tried.status.success() {
        bail!(
            "no network namespace with nf_tables and NAT here: {}\nRun this as root, a container \
             with --privileged. Ordinary users need user namespaces: user.max_user_namespaces above 0, \
             kernel.unprivileged_userns_clone=1, and on Ubuntu \
             kernel.apparmor_restrict_unprivileged_userns=0. Without nf_tables: modprobe -a nf_tables \
             nft_chain_nat",
            String::from_utf8_lossy(&tried.stderr).trim()
        );
    }
    Ok(words)
}

/// A command that runs `program` with [`isolation`].
pub(crate) fn isolated(program: impl AsRef<OsStr>) -> Result<Command> {
    let words = isolation()?;
    let mut command = command(words[0]);
    command.args(&words[1..]).arg(program);
    Ok(command)
}
