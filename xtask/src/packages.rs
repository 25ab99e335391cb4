//! System packages: found missing by looking for what they bring, installed with apt-get.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

use crate::command::{command, find, output, run};
use crate::style::Style;

/// The keys of Debian's archive, as Debian and Ubuntu install them.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What a package is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Compiling and linking the agent.
    Build,
    /// Running the tests.
    Test,
    /// Running the demo.
    Demo,
    /// Running tests in virtual machines.
    Vm,
    /// Running tests in containers.
    Container,
    /// Making a release, and tests under emulation.
    Release,
}

impl Purpose {
    /// Every purpose but a release, whose compilers few machines need, and pictures.
    pub(crate) const ALL: &[Self] =
        &[Self::Build, Self::Test, Self::Demo, Self::Vm, Self::Container];
}

/// How to see that something is there, wherever it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// A program on PATH or in an administrator's directory.
    Program(&'static str),
    /// A library with its headers, as pkg-config knows it.
    Library(&'static str),
    /// A file with this path.
    File(&'static str),
}

impl Probe {
    fn name(self) -> &'static str {
        match self {
            Self::Program(name) | Self::Library(name) | Self::File(name) => name,
        }
    }

    fn is_there(self) -> bool {
        match self {
            Self::Program(name) => find(name).is_some(),
            Self::Library(name) => output(command("pkg-config").args(["--exists", name]))
                .is_ok_and(|output| output.status.success()),
            Self::File(path) => Path::new(path).is_file(),
        }
    }
}

/// One thing the project needs from the system, and the Debian package that has it.
struct Requirement {
    probe: Probe,
    package: &'static str,
    why: &'static str,
    purposes: &'static [Purpose],
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        probe: Probe::Program("pkg-config"),
        package: "pkg-config",
        why: "tells the build where the C libraries are",
        purposes: &[Purpose::Build],
    },
    Requirement {
        probe: Probe::Library("libmnl"),
        package: "libmnl-dev",
        why: "the agent speaks netlink through it",
        purposes: &[Purpose::Build],
    },
    Requirement {
        probe: Probe::Library("libnftnl"),
        package: "libnftnl-dev",
        why: "the agent encodes its rules with it",
        purposes: &[Purpose::Build],
    },
    Requirement {
        probe: Probe::Program("unshare"),
        package: "util-linux",
        why: "tests, demo and the check of a release run in network namespaces of their own",
        purposes: &[Purpose::Test, Purpose::Demo, Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("ip"),
        package: "iproute2",
        why: "lays out nodes, pods and clients as network namespaces",
        purposes: &[Purpose::Test, Purpose::Demo, Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("nft"),
        package: "nftables",
        why: "shows what the kernel has; the agent itself never calls it",
        purposes: &[Purpose::Test, Purpose::Demo, Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("iptables-nft-restore"),
        package: "iptables",
        why: "writes the rules of kube-proxy's iptables mode, which `shunt diff` reads",
        purposes: &[Purpose::Test],
    },
    Requirement {
        probe: Probe::Program("conntrack"),
        package: "conntrack",
        why: "shows tests which connections the kernel tracks",
        purposes: &[Purpose::Test],
    },
    Requirement {
        probe: Probe::Program("strace"),
        package: "strace",
        why: "shows tests which system calls the agent makes",
        purposes: &[Purpose::Test],
    },
    Requirement {
        probe: Probe::Program("qemu-system-x86_64"),
        package: "qemu-system-x86",
        why: "boots other kernels, for the tests to run there",
        purposes: &[Purpose::Vm],
    },
    Requirement {
        probe: Probe::File(KEYRING),
        package: "debian-archive-keyring",
        why: "verifies the packages that are fetched",
        purposes: &[Purpose::Vm, Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("x86_64-linux-gnu-gcc"),
        package: "gcc-x86-64-linux-gnu",
        why: "links releases for amd64",
        purposes: &[Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("aarch64-linux-gnu-gcc"),
        package: "gcc-aarch64-linux-gnu",
        why: "links releases for arm64",
        purposes: &[Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("qemu-aarch64-static"),
        package: "qemu-user-static",
        why: "runs programs of another architecture",
        purposes: &[Purpose::Release],
    },
    Requirement {
        probe: Probe::Program("xz"),
        package: "xz-utils",
        why: "decompresses the modules of kernels",
        purposes: &[Purpose::Vm],
    },
    Requirement {
        probe: Probe::Program("containerd"),
        package: "containerd",
        why: "starts the image as a kubelet does",
        purposes: &[Purpose::Container],
    },
    Requirement {
        probe: Probe::Program("strip"),
        package: "binutils",
        why: "takes out of programs what only a debugger needs",
        purposes: &[Purpose::Build],
    },
];

/// Makes sure that what a task needs is on the machine.
pub(crate) struct Installer {
    /// Change nothing: name what is missing, and fail if anything is.
    pub(crate) only_print: bool,
}

impl Installer {
    /// Install what `purposes` need and the machine lacks.
    pub(crate) fn ensure(&self, purposes: &[Purpose]) -> Result<()> {
        let missing = missing(purposes, Probe::is_there);
        if missing.is_empty() {
            return Ok(());
        }
        self.explain(&missing);

        let packages: Vec<&str> = missing.iter().map(|requirement| requirement.package).collect();
        if self.only_print {
            bail!(
                "{} missing, and nothing was installed because of --no-install; {}",
                count(packages.len()),
                by_hand(&packages)
            );
        }
        let apt = AptGet::new(&packages)?;
        apt.install(&packages)?;

        // apt-get may succeed with a package that does not bring what we look for.
        if let Some(requirement) = self::missing(purposes, Probe::is_there).first() {
            bail!(
                "apt-get installed {}, and still there is no {}; \
                 look what that package brings on this distribution",
                requirement.package,
                requirement.probe.name()
            );
        }
        Ok(())
    }

    fn explain(&self, missing: &[&Requirement]) {
        let style = Style::of_stdout();
        let verb = if self.only_print { "would install" } else { "installing" };
        println!("{}", style.bold(format!("{verb} {}:", count(missing.len()))));
        for requirement in missing {
            println!("  {:<14} {}", requirement.package, style.dim(requirement.why));
        }
    }
}

/// The requirements of `purposes` that `is_there` does not find.
fn missing(purposes: &[Purpose], is_there: impl Fn(Probe) -> bool) -> Vec<&'static Requirement> {
    REQUIREMENTS
        .iter()
        .filter(|requirement| requirement.purposes.iter().any(|purpose| purposes.contains(purpose)))
        .filter(|requirement| !is_there(requirement.probe))
        .collect()
}

fn count(packages: usize) -> String {
    match packages {
        1 => "1 system package".into(),
        n => format!("{n} system packages"),
    }
}

fn by_hand(packages: &[&str]) -> String {
    format!("install with: apt-get install {}", packages.join(" "))
}

/// apt-get, with the right to install.
struct AptGet {
    through_sudo: bool,
}

impl AptGet {
    fn new(packages: &[&str]) -> Result<Self> {
        if find("apt-get").is_none() {
            bail!(
                "there is no apt-get here to install them with; install this distribution's \
                 packages that correspond to Debian's {}",
                packages.join(", ")
            );
        }
        if geteuid().is_root() {
            return Ok(Self { through_sudo: false });
        }
        // Without -n it would ask for a password, and block a script.
        let sudo_works = output(command("sudo").args(["-n", "true"]))
            .is_ok_and(|output| output.status.success());
        if !sudo_works {
            bail!(
                "installing needs root, and sudo does not work here without a password; run this \
                 as root and try again: apt-get install {}",
                packages.join(" ")
            );
        }
        Ok(Self { through_sudo: true })
    }

    fn install(&self, packages: &[&str]) -> Result<()> {
        let install = || {
            let mut install = self.command();
            install.args(["install", "--quiet", "--yes", "--no-install-recommends"]).args(packages);
            install
        };
        // A machine without package lists, or with ones that have aged, fails here; only such a
        // one needs the slow update.
        if output(&mut install())?.status.success() {
            return Ok(());
        }
        run(self.command().args(["update", "--quiet"]))
            .context("cannot fetch the package lists; check the network and apt's sources")?;
        run(&mut install()).with_context(|| {
            format!("cannot install {}; see apt-get's words above", packages.join(" "))
        })
    }

    fn command(&self) -> Command {
        let mut apt = if self.through_sudo {
            let mut sudo = command("sudo");
            sudo.arg("-n");
            sudo
        } else {
            command("env")
        };
        // Both sudo and env take assignments. A question asked by a package's configuration
        // would never be answered.
        apt.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        apt.stdin(std::process::Stdio::null());
        apt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(missing: &[&Requirement]) -> Vec<&'static str> {
        missing.iter().map(|requirement| requirement.package).collect()
    }

    #[test]
    fn what_is_missing_depends_on_the_purpose() {
        let nothing_there = |_| false;
        assert_eq!(
            names(&missing(&[Purpose::Build], nothing_there)),
            ["pkg-config", "libmnl-dev", "libnftnl-dev", "binutils"]
        );
        assert_eq!(
            names(&missing(&[Purpose::Demo], nothing_there)),
            ["util-linux", "iproute2", "nftables"]
        );
        // The agent of a release programs its rules once, in a network namespace.
        let release = names(&missing(&[Purpose::Release], nothing_there));
        for package in ["util-linux", "iproute2", "nftables"] {
            assert!(release.contains(&package), "{package} is not in {release:?}");
        }
        assert!(missing(Purpose::ALL, |_| true).is_empty());
    }

    #[test]
    fn only_what_is_not_there_is_missing() {
        let all_but_nft = |probe| probe != Probe::Program("nft");
        assert_eq!(names(&missing(Purpose::ALL, all_but_nft)), ["nftables"]);
    }

    #[test]
    fn every_package_says_why() {
        for requirement in REQUIREMENTS {
            assert!(requirement.why.len() > 20, "{}", requirement.package);
            assert!(!requirement.purposes.is_empty(), "{}", requirement.package);
        }
    }

    #[test]
    fn a_library_that_pkg_config_does_not_know_is_not_there() {
        assert!(!Probe::Library("no-library-has-this-name").is_there());
        assert!(!Probe::Program("no-program-has-this-name").is_there());
    }
}
