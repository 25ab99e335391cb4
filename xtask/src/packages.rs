//! System packages: found missing by looking for what they bring, installed with apt-get.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::command::{command, find, run};

/// The keys of Debian's archive, as Debian and Ubuntu install them.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A program or a file, and the package of Debian and Ubuntu that has it.
type Need = (&'static str, &'static str);

/// For compiling and linking the agent.
pub(crate) const BUILD: &[Need] = &[
    ("pkg-config", "pkg-config"),
    ("/usr/include/libmnl/libmnl.h", "libmnl-dev"),
    ("/usr/include/libnftnl/rule.h", "libnftnl-dev"),
    ("strip", "binutils"),
];
/// For the demo, and whatever else runs in network namespaces.
pub(crate) const NAMESPACES: &[Need] =
    &[("unshare", "util-linux"), ("ip", "iproute2"), ("nft", "nftables")];
pub(crate) const TEST: &[Need] =
    &[("iptables-nft-restore", "iptables"), ("conntrack", "conntrack"), ("strace", "strace")];
/// For tests in virtual machines.
pub(crate) const VM: &[Need] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    (KEYRING, "debian-archive-keyring"),
    ("xz", "xz-utils"),
    ("modprobe", "kmod"),
    ("cpio", "cpio"),
    ("ipvsadm", "ipvsadm"),
];
/// For tests in containers.
pub(crate) const CONTAINER: &[Need] = &[("containerd", "containerd"), ("buildah", "buildah")];
/// For a cluster: its runtime, and what is in the images of upstream's tests.
pub(crate) const CLUSTER: &[Need] = &[
    ("runc", "runc"),
    ("python3", "python3"),
    ("openssl", "openssl"),
    ("busybox", "busybox"),
    ("curl", "curl"),
    ("wget", "wget"),
    ("nc.openbsd", "netcat-openbsd"),
    ("iperf", "iperf"),
    ("dig", "bind9-dnsutils"),
    ("strip", "binutils"),
];
pub(crate) const ALL: &[&[Need]] = &[BUILD, NAMESPACES, TEST, VM, CONTAINER];

const INSTALL: &str = r#"export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qy --no-install-recommends "$@"; }
install "$@" || { apt-get update -q && install "$@"; }"#;

/// Makes sure that what a task needs is on the machine.
pub(crate) struct Installer {
    /// Change nothing: name what is missing, and fail if anything is.
    pub(crate) only_print: bool,
}

impl Installer {
    /// Installs what the machine lacks.
    pub(crate) fn ensure(&self, needs: &[&[Need]]) -> Result<()> {
        let missing = missing(needs);
        if missing.is_empty() {
            return Ok(());
        }
        let packages = missing.join(" ");
        let by_hand = || format!("install, as root: apt-get install {packages}");
        if self.only_print {
            bail!("missing: {}", by_hand());
        }
        println!("installing {packages}");
        // Without -n, sudo would ask for a password, and block a script.
        let words: &[&str] = if geteuid().is_root() { &["sh"] } else { &["sudo", "-n", "sh"] };
        let mut install = command(words[0]);
        install.args(&words[1..]).args(["-c", INSTALL, "sh"]).args(&missing);
        run(install.stdin(std::process::Stdio::null())).with_context(by_hand)?;
        let missing = self::missing(needs);
        ensure!(
            missing.is_empty(),
            "these packages still lack needed programs or files: {}",
            missing.join(" ")
        );
        Ok(())
    }
}

/// The packages of what is not there.
fn missing(needs: &[&[Need]]) -> Vec<&'static str> {
    let is_there = |what: &str| Path::new(what).is_absolute() && Path::new(what).exists();
    let needs = needs.iter().copied().flatten();
    let missing = needs.filter(|(what, _)| !is_there(what) && find(what).is_none());
    missing.map(|(_, package)| *package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_there_is_missing() {
        let needs: &[Need] =
            &[("sh", "dash"), ("/", "root"), ("no-such", "one"), ("/no/such", "two")];
        assert_eq!(missing(&[needs]), ["one", "two"]);
    }
}
