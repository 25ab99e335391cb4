//! Network namespaces: whether we may make them, and how.

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Output};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::command::{command, output};

/// What every test needs from the kernel: tables, and NAT, which lives in a module of its own.
const NFT_PROBE: &str = "add table ip probe; \
     add chain ip probe nat { type nat hook prerouting priority -100; }";

/// Who we are to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Root, with the right to make network namespaces.
    Root,
    /// An ordinary user, who is root in a user namespace of its own.
    UserNamespace,
}

impl Privilege {
    /// Who we are, after trying that namespaces and nf_tables work for us; else the reason.
    pub(crate) fn probe() -> Result<Self> {
        let privilege = if geteuid().is_root() { Self::Root } else { Self::UserNamespace };
        let tried = privilege.try_inside(&["true"])?;
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            bail!(privilege.why_refused(said.trim(), sysctl));
        }
        let tried = privilege.try_inside(&["nft", NFT_PROBE])?;
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            let kernel = sysctl("kernel/osrelease").unwrap_or_default();
            bail!(why_no_rules(said.lines().next().unwrap_or_default().trim(), &kernel));
        }
        Ok(privilege)
    }

    /// The words before a command line that give it a network namespace of its own, with the
    /// loopback device up, and the rights of root in it.
    pub(crate) fn isolation(self) -> Vec<&'static str> {
        let shell = ["sh", "-c", r#"ip link set lo up && exec "$@""#, "sh"];
        [self.namespace(), &shell].concat()
    }

    /// `program` with [`Self::isolation`].
    pub(crate) fn isolated(self, program: impl AsRef<OsStr>) -> Command {
        let words = self.isolation();
        let mut command = command(words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    fn namespace(self) -> &'static [&'static str] {
        match self {
            Self::Root => &["unshare", "--net", "--"],
            Self::UserNamespace => &["unshare", "--user", "--map-root-user", "--net", "--"],
        }
    }

    /// What these words say inside a namespace, with nothing else done there.
    fn try_inside(self, words: &[&str]) -> Result<Output> {
        let namespace = self.namespace();
        output(command(namespace[0]).args(&namespace[1..]).args(words))
    }

    /// One sentence: why no namespace, and what to do about it.
    fn why_refused(self, said: &str, sysctl: impl Fn(&str) -> Option<String>) -> String {
        let is = |name: &str, value: &str| sysctl(name).as_deref() == Some(value);
        if self == Self::Root {
            return format!(
                "root, but not allowed to make a network namespace (unshare says \"{said}\"); in a \
                 container, start it with --privileged"
            );
        }
        if is("user/max_user_namespaces", "0") {
            return "user namespaces are switched off here (user.max_user_namespaces is 0); run \
                    this as root, or raise that sysctl as root"
                .into();
        }
        if is("kernel/unprivileged_userns_clone", "0") {
            return "this kernel keeps user namespaces for root; run this as root, or as root set \
                    kernel.unprivileged_userns_clone=1"
                .into();
        }
        if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
            return "AppArmor takes the rights out of unprivileged user namespaces here (Ubuntu's \
                    default since 23.10); run this as root, or as root set \
                    kernel.apparmor_restrict_unprivileged_userns=0"
                .into();
        }
        format!(
            "not root, and not allowed to make a user namespace (unshare says \"{said}\"); run \
             this as root"
        )
    }
}

/// One sentence: why no rules in a namespace of our own, and what to do about it.
fn why_no_rules(said: &str, kernel: &str) -> String {
    if said.contains("not permitted") {
        return format!(
            "not allowed to write rules, even in a network namespace of our own (nft says \
             \"{said}\"); give this container CAP_NET_ADMIN"
        );
    }
    format!(
        "this kernel ({kernel}) has no nf_tables with NAT (nft says \"{said}\"); it needs \
         CONFIG_NF_TABLES and CONFIG_NFT_NAT, or their modules loaded (as root: modprobe -a \
         nf_tables nft_chain_nat)"
    )
}

fn sysctl(name: &str) -> Option<String> {
    let value = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_setting_that_caused_it() {
        let with = |setting: &'static str, value: &'static str| {
            Privilege::UserNamespace.why_refused("Operation not permitted", |name| {
                (name == setting).then(|| value.to_owned())
            })
        };
        assert!(with("user/max_user_namespaces", "0").contains("user.max_user_namespaces"));
        assert!(
            with("kernel/unprivileged_userns_clone", "0")
                .contains("kernel.unprivileged_userns_clone=1")
        );
        assert!(with("kernel/apparmor_restrict_unprivileged_userns", "1").contains("AppArmor"));
        assert!(with("user/max_user_namespaces", "63000").contains("Operation not permitted"));
    }

    #[test]
    fn a_missing_right_is_told_from_a_missing_module() {
        let right = why_no_rules("Error: Could not process rule: Operation not permitted", "6.1");
        assert!(right.contains("CAP_NET_ADMIN"), "{right}");
        let module = why_no_rules("Error: Could not process rule: No such file", "6.1");
        assert!(module.contains("modprobe") && module.contains("6.1"), "{module}");
    }

    #[test]
    fn root_is_told_about_containers() {
        let reason = Privilege::Root.why_refused("Operation not permitted", |_| None);
        assert!(reason.contains("--privileged"), "{reason}");
    }
}
