//! `cargo xtask man`: the man pages, and the completions of bash, which the agent writes itself.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, GzBuilder};

use crate::command::{cargo, command, repository, run as run_command, stdout};
use crate::packages::{Installer, Purpose};
use crate::release;
use crate::tree::Tree;

/// The folder for the pages.
const OUTPUT: &str = "target/man";

/// Write the man pages.
pub(crate) fn run(installer: &Installer) -> Result<()> {
    installer.ensure(&[Purpose::Build])?;
    run_command(cargo().args(["build", "--quiet", "--locked", "--package", "shunt"]))?;
    let folder = repository().join(OUTPUT);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    write_pages(&release::built("debug")?, &folder)?;
    println!("wrote the man pages to {OUTPUT}; read one with `man -l {OUTPUT}/shunt.1`");
    Ok(())
}

/// The man pages and the completions of bash of this agent, where Debian has them.
pub(crate) fn install(agent: &Path, tree: &mut Tree) -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_pages(agent, folder.path())?;
    let mut pages = 0;
    for page in fs::read_dir(folder.path())? {
        let page = page?;
        let name = page.file_name().into_string().ok().context("a page without a name")?;
        tree.file(&format!("usr/share/man/man1/{name}.gz"), gzip(&fs::read(page.path())?)?)?;
        pages += 1;
    }
    ensure!(pages > 0, "the agent has written no man page");
    let script = stdout(command(agent).args(["completion", "bash"]))?;
    tree.file("usr/share/bash-completion/completions/shunt", script)
}

fn write_pages(agent: &Path, folder: &Path) -> Result<()> {
    run_command(command(agent).arg("man").arg(folder))
}

/// Compressed as Debian does it, without a name and a time: the same page makes the same bytes.
fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}
