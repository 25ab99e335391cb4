//! The version of the program and of its build.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

/// The build of this program, and the kernel it runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Build {
    /// The version of the program.
    pub(super) version: &'static str,
    /// The commit of the source, if the build knew it (`SHUNT_COMMIT`).
    commit: Option<&'static str>,
    /// The operating system.
    os: &'static str,
    /// The architecture.
    arch: &'static str,
    /// `debug` or `release`.
    profile: &'static str,
    /// The release of the kernel.
    kernel: Option<String>,
}

impl Default for Build {
    /// Returns the build of this program.
    fn default() -> Build {
        let kernel = nix::sys::utsname::uname().ok();
        Build {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("SHUNT_COMMIT").filter(|commit| !commit.is_empty()),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            kernel: kernel.map(|name| name.release().to_string_lossy().into_owned()),
        }
    }
}

impl Display for Build {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Build { version, commit, os, arch, profile, kernel } = self;
        let commit = commit.unwrap_or("unknown");
        writeln!(f, "shunt {version}\ncommit {commit}\nbuild  {profile}, {os} {arch}")?;
        writeln!(f, "kernel {}", kernel.as_deref().unwrap_or("unknown"))
    }
}
