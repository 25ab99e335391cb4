//! `cargo xtask image`: the image of the Dockerfile without a daemon and a registry, by buildah.
//!
//! The agent is the one that this machine has built, so the base is this machine's Debian or Ubuntu: the
//! packages that a slim image has of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use nix::unistd::geteuid;

use crate::command::{command, repository, run as run_command, stdout};
use crate::packages::{self, Installer};
use crate::release;

/// The image, as `docker save` writes one.
pub(crate) const OUTPUT: &str = "target/image/shunt.tar";

/// The name that the chart has by default.
const NAME: &str = concat!("localhost/shunt:", env!("CARGO_PKG_VERSION"));

/// The packages of the base.
const BASE: [&str; 3] = ["base-files", "libc6", "libgcc-s1"];

/// Makes the image of an agent.
pub(crate) fn run(installer: &Installer, agent: &Path) -> Result<()> {
    ensure!(geteuid().is_root(), "buildah needs root here; `docker build .` makes the same image");
    installer.ensure(&[packages::BUILD, packages::CONTAINER])?;
    let tree = release::tree(agent)?;
    let (output, scratch) = (repository().join(OUTPUT), tempfile::tempdir()?);
    if let Some(folder) = output.parent() {
        fs::create_dir_all(folder)?;
    }
    let packages = scratch.path().join("packages");
    fs::create_dir(&packages)?;
    run_command(
        command("apt-get")
            .args(["-oAPT::Sandbox::User=root", "download", "--quiet"])
            .args(BASE)
            .current_dir(&packages),
    )?;
    for package in fs::read_dir(&packages)? {
        let mut unpack = command("dpkg-deb");
        run_command(unpack.arg("--extract").arg(package?.path()).arg(scratch.path().join("base")))?;
    }
    let buildah = |arguments: &[&str]| {
        let mut buildah: Command = command("buildah");
        let storage = ["root", "runroot"]
            .map(|name| format!("--{name}={}", scratch.path().join(name).display()));
        buildah.args(storage).args(["--log-level=error", "--storage-driver=vfs"]).args(arguments);
        buildah
    };
    for (name, folder) in
        [("localhost/built", tree), ("localhost/base", scratch.path().join("base"))]
    {
        let container = stdout(&mut buildah(&["from", "scratch"]))?;
        stdout(buildah(&["add", container.trim()]).arg(folder).arg("/"))?;
        stdout(&mut buildah(&["commit", "--quiet", "--rm", container.trim(), name]))?;
    }
    let mut build = buildah(&["build", "--isolation=chroot", "--pull-never", "--tag", NAME]);
    build.args(["--build-arg=BUILT=localhost/built", "--build-arg=BASE=localhost/base"]);
    run_command(build.arg("--file").arg(repository().join("Dockerfile")).arg(&packages))?;
    // The format knows no replacement of an image.
    let _ = fs::remove_file(&output);
    let archive = format!("docker-archive:{}:{NAME}", output.display());
    run_command(&mut buildah(&["push", "--quiet", NAME, &archive]))?;
    println!("{NAME}: {OUTPUT}, {:.1} MB", fs::metadata(&output)?.len() as f64 / 1e6);
    Ok(())
}
