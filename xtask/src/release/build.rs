//! The agent as it is released: one statically linked binary, the same wherever it is built.
//!
//! No path of this machine may reach the binary, or what cargo derives the names of symbols from. So
//! paths that rustc would record are replaced, and the folder of the sysroot is in a script that links,
//! not in rustc's flags. docs/decisions/0059-release.md has the details.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::architecture::Architecture;
use super::source::Source;
use super::sysroot::Sysroot;
use crate::command::{cargo, command, find, repository, run, stdout};

/// The version of cargo-auditable, which puts the list of crates into the binary.
pub(crate) const AUDITABLE: &str = "0.7.7";

/// Where everything is built: beside other builds, whose binaries have no list of crates.
const FOLDER: &str = "target/release-build";

/// Keeps the static libc from loading modules of the host.
const NSS: &str = "xtask/src/release/nss.c";

/// Builds the agent; the path of its binary.
pub(crate) fn agent(
    architecture: Architecture,
    sysroot: &Sysroot,
    source: &Source,
) -> Result<PathBuf> {
    let mut build = auditable()?;
    build.args(["build", "--release", "--locked", "--package=shunt"]);
    environment(&mut build, architecture, sysroot)?;
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    // The names of functions stay, for backtraces.
    build.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    match &source.revision {
        Some(revision) => build.env("SHUNT_COMMIT", revision),
        None => build.env_remove("SHUNT_COMMIT"),
    };
    run(&mut build)?;
    let agent = folder().join(architecture.target()).join("release/shunt");
    ensure!(agent.is_file(), "cargo has built no {}", agent.display());
    Ok(agent)
}

/// Lets cargo build static programs for this architecture, below the folder of releases.
pub(super) fn environment(
    cargo: &mut Command,
    architecture: Architecture,
    sysroot: &Sysroot,
) -> Result<()> {
    let target = architecture.target();
    ensure_target(target)?;
    let name = target.replace('-', "_");
    let root = sysroot.folder.display();
    let compiler = architecture.compiler();
    let object = folder().join("scripts").join(format!("nss-{}.o", architecture.name()));
    // On a machine of this architecture, cargo links build scripts by the same script. They are not
    // static. libnftnl needs libmnl, which rustc may name before it.
    let linker = script(
        &format!("link-{}", architecture.name()),
        &format!(
            "case \" $* \" in\n*' -static-pie '*|*' -static '*) exec {compiler} --sysroot='{root}' \"$@\" '{}' -lmnl ;;\n\
             *) exec {compiler} \"$@\" ;;\nesac",
            object.display()
        ),
    )?;
    let mut compile = command(&compiler);
    compile.arg(format!("--sysroot={root}")).args(["-O2", "-Wall", "-Werror", "-c"]).arg(NSS);
    run(compile.arg("-o").arg(&object))?;
    cargo.args(["--target", target]).arg("--target-dir").arg(folder());
    cargo.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), linker);
    // These would overrule the flags below.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_BUILD_RUSTFLAGS");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags()?.join("\x1f"));
    cargo.env(format!("CC_{name}"), compiler);
    cargo.env(
        format!("CFLAGS_{name}"),
        format!("--sysroot={root} -ffile-prefix-map={}=/shunt", repository().display()),
    );
    // Build scripts link the same libraries for this machine, which pkg-config finds where they are.
    cargo.env_remove("LIBMNL_LIB_DIR").env_remove("LIBNFTNL_LIB_DIR");
    cargo.env(format!("PKG_CONFIG_SYSROOT_DIR_{name}"), &sysroot.folder);
    cargo.env(
        format!("PKG_CONFIG_LIBDIR_{name}"),
        sysroot.folder.join("usr/lib").join(architecture.multiarch()).join("pkgconfig"),
    );
    Ok(())
}

/// Adds Rust's standard library for this architecture, unless it is there.
fn ensure_target(target: &str) -> Result<()> {
    if rust()?.join("lib/rustlib").join(target).join("lib").is_dir() {
        return Ok(());
    }
    ensure!(
        find("rustup").is_some(),
        "this Rust has no standard library for {target}, and there is no rustup to add it; install \
         Rust with rustup"
    );
    run(command("rustup").args(["target", "add", target]))
}

/// The folder of the Rust toolchain.
fn rust() -> Result<PathBuf> {
    let folder = stdout(command("rustc").args(["--print", "sysroot"]))?;
    Ok(folder.trim().into())
}

/// The flags of rustc for a released binary.
fn flags() -> Result<Vec<String>> {
    let home = cargo_home()?;
    let replaced = [(repository(), "/shunt"), (home, "/cargo"), (rust()?, "/rust")];
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(
        replaced.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())),
    );
    Ok(flags)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

fn folder() -> PathBuf {
    repository().join(FOLDER)
}

/// `cargo auditable`, installed if it is missing.
///
/// cargo-auditable gives cargo its own path as the wrapper for crates of the workspace. cargo derives
/// the names of symbols from that path, but not from the path of a general wrapper.
fn auditable() -> Result<Command> {
    let root = repository().join(format!("target/release-tools/cargo-auditable-{AUDITABLE}"));
    let program = root.join("bin/cargo-auditable");
    if !program.is_file() {
        let version = format!("--version={AUDITABLE}");
        let mut install = cargo();
        install.args(["install", "--locked", "--quiet", "cargo-auditable"]);
        run(install.arg(version).arg("--root").arg(&root))?;
    }
    let cargo = cargo();
    let path = Path::new(cargo.get_program());
    let path = if path.is_absolute() {
        path.to_owned()
    } else {
        find(&path.display().to_string()).context("there is no cargo on PATH")?
    };
    let wrapped = script(
        "cargo",
        &format!(
            "[ -z \"$RUSTC_WORKSPACE_WRAPPER\" ] || export RUSTC_WRAPPER=\"$RUSTC_WORKSPACE_WRAPPER\"\n\
             unset RUSTC_WORKSPACE_WRAPPER\nexec '{}' \"$@\"",
            path.display()
        ),
    )?;
    let mut auditable = command(program);
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => auditable.env(name, value),
            None => auditable.env_remove(name),
        };
    }
    auditable.env("CARGO", wrapped).arg("auditable");
    Ok(auditable)
}

/// Writes a shell script, beside what is built.
fn script(name: &str, text: &str) -> Result<PathBuf> {
    let folder = folder().join("scripts");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(name);
    let text = format!("#!/bin/sh\n{text}\n");
    // A new time of the file would let cargo link again.
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

/// The versions of the tools, by name.
pub(super) fn tools(architectures: &[Architecture]) -> Result<Vec<(String, String)>> {
    let first_line = |program: &str| -> Result<String> {
        let text = stdout(command(program).arg("--version"))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    let mut tools = vec![
        ("rustc".to_owned(), first_line("rustc")?),
        ("cargo-auditable".to_owned(), AUDITABLE.to_owned()),
    ];
    for architecture in architectures {
        let compiler = architecture.compiler();
        let version = first_line(&compiler)?;
        tools.push((compiler, version));
    }
    Ok(tools)
}
