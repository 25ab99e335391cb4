//! The architectures of a release, with the names that each tool has for them.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use crate::command::command;

/// An architecture that binaries are released for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// Every architecture of a release.
    pub(crate) const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// Returns the name that Debian and container images use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the target of rustc.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns the name of Debian's folders of libraries, and the prefix of its compilers.
    pub(crate) fn multiarch(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Returns the C compiler for this architecture, which also links.
    pub(crate) fn compiler(self) -> String {
        format!("{}-gcc", self.multiarch())
    }

    /// Returns the emulator for programs of this architecture, unless this machine runs them.
    pub(crate) fn emulator(self) -> Option<&'static str> {
        match (self, std::env::consts::ARCH) {
            (Self::Amd64, "x86_64") | (Self::Arm64, "aarch64") => None,
            (Self::Amd64, _) => Some("qemu-x86_64-static"),
            (Self::Arm64, _) => Some("qemu-aarch64-static"),
        }
    }

    /// Returns a command that runs a statically linked program of this architecture.
    pub(crate) fn run(self, program: &Path) -> Command {
        match self.emulator() {
            None => command(program),
            Some(emulator) => {
                let mut emulated = command(emulator);
                emulated.arg(program);
                emulated
            }
        }
    }
}
