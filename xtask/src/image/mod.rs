//! `cargo xtask image`: a container image of the agent, without a container engine.
//!
//! An OCI image layout (image-spec 1.1) of two layers: what the agent needs from the system, which
//! changes rarely, and the agent. From the same files it makes the same bytes. What it has written is
//! read back and checked, and the agent in it is run.

mod check;
mod contents;
mod layer;
mod layout;
mod licences;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::layout::{Image, Layer};
use crate::command::{command, repository, stdout};
use crate::packages::{Installer, Purpose};
use crate::release;
use crate::style::Style;
use crate::tree::Tree;

/// The default folder of the image layout.
pub(crate) const OUTPUT: &str = "target/image";

/// The default name of an image, which no registry has.
const NAME: &str = concat!("localhost/shunt:", env!("CARGO_PKG_VERSION"));

/// Arguments of `cargo xtask image`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder for the image layout; it is made anew
    #[arg(long, value_name = "FOLDER", default_value = OUTPUT)]
    output: PathBuf,

    /// Write the files of the image to this folder, too, which must not exist or be empty
    #[arg(long, value_name = "FOLDER")]
    unpack: Option<PathBuf>,

    /// The name of the image
    #[arg(long, default_value = NAME)]
    name: String,
}

impl Default for Arguments {
    fn default() -> Self {
        Self { output: OUTPUT.into(), unpack: None, name: NAME.to_owned() }
    }
}

/// Build the agent and make an image of it.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    installer.ensure(&[Purpose::Build])?;
    let image = assemble(&release::build()?, &arguments.name)?;
    let output = repository().join(&arguments.output);
    write(&image, &output)?;
    check::check(&output)?;
    if let Some(folder) = &arguments.unpack {
        let folder = repository().join(folder);
        let empty = fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_none());
        ensure!(empty, "{} is not empty", folder.display());
        check::unpack(&output, &folder)?;
    }
    let style = Style::of_stdout();
    println!("{} {}", style.bold("image:"), arguments.name);
    println!("{} {}", style.bold("layout:"), output.display());
    println!("{} {:.1} MB", style.bold("size:"), image.size() as f64 / 1e6);
    println!("{} {}", style.bold("digest:"), image.digest());
    Ok(())
}

/// The image of this binary, with what it needs from this machine.
fn assemble(agent: &Path, name: &str) -> Result<Image> {
    let commit = Commit::read()?;
    let mut system = Tree::default();
    contents::system(agent, &mut system)?;
    let mut own = Tree::default();
    contents::agent(agent, &commit.revision, &mut own)?;
    let layers =
        vec![Layer::new("what shunt needs from the system", &system)?, Layer::new("shunt", &own)?];
    Image::new(name, &commit, layers)
}

/// Put the image into this folder; a layout that was there is replaced.
fn write(image: &Image, folder: &Path) -> Result<()> {
    if folder.exists() {
        ensure!(
            folder.join("oci-layout").is_file() || fs::read_dir(folder)?.next().is_none(),
            "{} has something else than an image layout in it; choose another folder",
            folder.display()
        );
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    image.write(folder)
}

/// What the image is made of.
struct Commit {
    /// Its name, with a mark where files were changed since.
    revision: String,
    /// When it was made, as RFC 3339 writes it. It stands for the time at which the image was made,
    /// which would make every image another one.
    time: String,
}

impl Commit {
    fn read() -> Result<Self> {
        let git = |arguments: &[&str]| -> Result<String> {
            let text = stdout(command("git").args(arguments).env("TZ", "UTC"))
                .context("cannot tell from which commit the image is made")?;
            Ok(text.trim().to_owned())
        };
        let revision = git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])?;
        let format = "--date=format-local:%Y-%m-%dT%H:%M:%SZ";
        Ok(Self { revision, time: git(&["log", "-1", format, "--format=%cd"])? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{cargo, run};

    #[test]
    fn the_agent_runs_in_its_image_and_the_image_is_the_same_twice() {
        run(cargo().args(["build", "--quiet", "--package", "shunt"])).unwrap();
        let agent = release::built("debug").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let layouts = ["one", "two"].map(|name| folder.path().join(name));
        let images = layouts.each_ref().map(|layout| {
            let image = assemble(&agent, "example.net/shunt:test").unwrap();
            write(&image, layout).unwrap();
            image
        });
        let [one, two] = layouts.each_ref().map(|it| fs::read(it.join("index.json")).unwrap());
        assert_eq!(one, two);
        check::check(&layouts[0]).unwrap();

        // Again into the same folder, but into no other.
        write(&images[0], &layouts[0]).unwrap();
        fs::write(folder.path().join("precious"), "").unwrap();
        assert!(write(&images[0], folder.path()).is_err());
        assert!(folder.path().join("precious").exists());
    }
}
