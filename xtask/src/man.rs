//! `cargo xtask man`: the man pages, and the completions of shells, which the agent writes itself.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, GzBuilder};

use crate::agent;
use crate::command::{cargo, command, repository, run as run_command, stdout};
use crate::packages::{Installer, Purpose};
use crate::tree::Tree;

/// The folder for the pages.
const OUTPUT: &str = "target/man";

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/shunt"),
    ("zsh", "usr/share/zsh/site-functions/_shunt"),
    ("fish", "usr/share/fish/vendor_completions.d/shunt.fish"),
];

/// Write the man pages.
pub(crate) fn run(installer: &Installer) -> Result<()> {
    installer.ensure(&[Purpose::Build])?;
    run_command(cargo().args(["build", "--quiet", "--locked", "--package", "shunt"]))?;
    let folder = repository().join(OUTPUT);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    run_command(command(agent::built("debug")?).arg("man").arg(&folder))?;
    println!("wrote the man pages to {OUTPUT}; read one with `man -l {OUTPUT}/shunt.1`");
    Ok(())
}

/// The man pages and the completions of shells, where they look for them. `agent` begins a command that
/// runs the agent.
pub(crate) fn install(agent: &dyn Fn() -> Command, tree: &mut Tree) -> Result<()> {
    let folder = tempfile::tempdir()?;
    run_command(agent().arg("man").arg(folder.path()))?;
    let mut pages = 0;
    for page in fs::read_dir(folder.path())? {
        let page = page?;
        let name = page.file_name().into_string().ok().context("a page without a name")?;
        tree.file(&format!("usr/share/man/man1/{name}.gz"), gzip(&fs::read(page.path())?)?)?;
        pages += 1;
    }
    ensure!(pages > 0, "the agent has written no man page");
    for (shell, path) in COMPLETIONS {
        tree.file(path, stdout(agent().args(["completion", shell]))?)?;
    }
    Ok(())
}

/// Compressed as Debian does it, without a name and a time: the same page makes the same bytes.
fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}
