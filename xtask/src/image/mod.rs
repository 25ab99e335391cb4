//! `cargo xtask image`: a container image of the agent, without a container engine.
//!
//! An OCI image layout (image-spec 1.1) of two layers: what the agent needs from the system, which
//! changes rarely, and the agent. From the same files it makes the same bytes. What it has written is
//! read back and checked, and the agent in it is run.

pub(crate) mod check;
pub(crate) mod contents;
mod documents;
pub(crate) mod layer;
pub(crate) mod layout;
pub(crate) mod licences;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

pub(crate) use self::documents::{Image, Platform, split};
use crate::agent;
use crate::command::repository;
use crate::packages::{Installer, Purpose};
use crate::release::source::Source;
use crate::style::Style;
use crate::tree::Tree;

/// The default folder of the image layout.
pub(crate) const OUTPUT: &str = "target/image";

/// The default name of an image, which no registry has.
pub(crate) const NAME: &str = concat!("localhost/shunt:", env!("CARGO_PKG_VERSION"));

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
    let image = assemble(&agent::build()?, &arguments.name)?;
    let output = repository().join(&arguments.output);
    write(&image, &output)?;
    check::check(&output, None)?;
    if let Some(folder) = &arguments.unpack {
        let folder = repository().join(folder);
        let empty = fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_none());
        ensure!(empty, "{} is not empty", folder.display());
        check::unpack(&output, None, &folder)?;
    }
    let style = Style::of_stdout();
    println!("{} {}", style.bold("image:"), arguments.name);
    println!("{} {}", style.bold("layout:"), output.display());
    println!("{} {:.1} MB", style.bold("size:"), image.layout.size() as f64 / 1e6);
    println!("{} {}", style.bold("digest:"), image.digest());
    Ok(())
}

/// The image of this binary, with what it needs from this machine.
fn assemble(agent: &Path, name: &str) -> Result<Image> {
    let source = Source::read()?;
    let mut system = Tree::default();
    contents::system(agent, &mut system)?;
    let mut own = Tree::default();
    contents::agent(agent, source.commit(), &mut own)?;
    let layers = vec![("what shunt needs from the system", system), ("shunt", own)];
    Image::new(name, &source, &[Platform { architecture: architecture()?, layers }])
}

/// The name that Go has for what this program was built for, and with it the agent.
fn architecture() -> Result<&'static str> {
    Ok(match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "riscv64" => "riscv64",
        "s390x" => "s390x",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => bail!("there is no name for images of the architecture {other}"),
    })
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
    image.layout.files()?.write(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{cargo, run};

    #[test]
    fn the_agent_runs_in_its_image_and_the_image_is_the_same_twice() {
        // As `cargo xtask test` builds it; with `--package` other features would make another build.
        let arguments = ["test", "--quiet", "--no-run", "--workspace", "--test", "deploy"];
        run(cargo().args(arguments)).unwrap();
        let agent = agent::built("debug").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let layouts = ["one", "two"].map(|name| folder.path().join(name));
        let images = layouts.each_ref().map(|layout| {
            let image = assemble(&agent, "example.net/shunt:test").unwrap();
            write(&image, layout).unwrap();
            image
        });
        let [one, two] = layouts.each_ref().map(|it| fs::read(it.join("index.json")).unwrap());
        assert_eq!(one, two);
        check::check(&layouts[0], None).unwrap();

        // Again into the same folder, but into no other.
        write(&images[0], &layouts[0]).unwrap();
        fs::write(folder.path().join("precious"), "").unwrap();
        assert!(write(&images[0], folder.path()).is_err());
        assert!(folder.path().join("precious").exists());
    }

    #[test]
    fn an_index_has_an_image_for_each_architecture() {
        let platforms = ["amd64", "arm64"].map(|architecture| {
            let mut tree = Tree::default();
            tree.file("etc/architecture", architecture).unwrap();
            Platform { architecture, layers: vec![("one", tree)] }
        });
        let source = Source { revision: None, time: 17 };
        let image = Image::new("example.net/shunt:test", &source, &platforms).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout");
        write(&image, &layout).unwrap();
        let index = fs::read_to_string(layout.join("index.json")).unwrap();
        assert!(index.contains(image.digest()) && index.contains(layout::INDEX), "{index}");
        for architecture in ["amd64", "arm64"] {
            let root = folder.path().join(architecture);
            check::unpack(&layout, Some(architecture), &root).unwrap();
            let content = fs::read_to_string(root.join("etc/architecture")).unwrap();
            assert_eq!(content, architecture);
        }
        let other = check::unpack(&layout, Some("s390x"), &folder.path().join("s390x"));
        assert!(other.unwrap_err().to_string().contains("s390x"));
    }
}
