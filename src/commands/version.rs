//! The version of the program and of its build.

/// The build of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The version of the program.
    pub version: &'static str,
    /// The commit of the source, if the build knew it (`SHUNT_COMMIT`).
    pub commit: Option<&'static str>,
    /// The operating system.
    pub os: &'static str,
    /// The architecture.
    pub arch: &'static str,
    /// `debug` or `release`.
    pub profile: &'static str,
}

impl Default for Build {
    /// Returns the build of this program.
    fn default() -> Build {
        Build {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("SHUNT_COMMIT").filter(|commit| !commit.is_empty()),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

impl Build {
    /// Returns the build as JSON.
    #[must_use]
    pub fn json(self) -> serde_json::Value {
        let Build { version, commit, os, arch, profile } = self;
        serde_json::json!({
            "version": version, "commit": commit, "os": os, "arch": arch, "profile": profile,
        })
    }
}
