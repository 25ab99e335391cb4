//! `cargo xtask release`: everything that is published for a version, in one folder.
//!
//! A binary, a tarball and a bill of materials for each architecture; an image of all architectures; the
//! chart, as a package and as an OCI artifact; the source; the provenance, and digests of all. The same
//! source and tools make the same bytes, in any folder. docs/release.md says how to release and how to
//! verify, docs/decisions/0059-release.md why it is done so.

pub(crate) mod architecture;
mod binary;
mod build;
mod chart;
pub(crate) mod crates;
mod emulation;
mod files;
mod provenance;
mod ready;
mod sbom;
mod sign;
pub(crate) mod source;
pub(crate) mod sysroot;
#[cfg(test)]
mod workflow;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::architecture::Architecture;
use self::crates::Crate;
pub(crate) use self::emulation::{Arguments as EmulationArguments, run as emulate};
use self::provenance::Inputs;
use self::sbom::Materials;
use self::source::{Source, VERSION};
use self::sysroot::Sysroot;
use crate::command::{repository, stdout};
use crate::digest::sha256;
use crate::image::layer::{archive, compress};
use crate::image::{self, Image, Platform};
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;
use crate::style::Style;
use crate::tree::{Item, Tree};

/// The default folder of the artifacts.
const OUTPUT: &str = "target/release-artifacts";

/// The file with the digests of all others.
const SUMS: &str = "SHA256SUMS";

/// Arguments of `cargo xtask release`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder for the artifacts; it is made anew
    #[arg(long, value_name = "FOLDER", default_value = OUTPUT)]
    output: PathBuf,

    /// The full name of the image, with a tag; the chart names it by its digest, unless its registry is
    /// localhost
    #[arg(long, value_name = "NAME:TAG", default_value = image::NAME)]
    image: String,

    /// The tag that is released: fail unless it is that of the version
    #[arg(long)]
    tag: Option<String>,

    /// Build although the source is not ready to be released
    #[arg(long)]
    snapshot: bool,

    /// Where folders `debian` and `debian-security` are, with the C libraries; the default is the mirror
    /// of this machine's apt
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,

    /// Only these architectures
    #[arg(long, value_enum, default_values_t = Architecture::ALL)]
    architecture: Vec<Architecture>,
}

/// What was built for one architecture.
struct Built {
    architecture: Architecture,
    sysroot: Sysroot,
    crates: Vec<Crate>,
    agent: Tree,
    sbom: String,
}

/// Makes the release.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    let source = Source::read()?;
    if !arguments.snapshot {
        ready::check(&source, arguments.tag.as_deref())?;
    }
    let files = source::files()?;
    let (repository_name, _) = image::split(&arguments.image)?;
    installer.ensure(&[Purpose::Build, Purpose::Release])?;
    let tools = build::tools(&arguments.architecture)?;
    let mut all = Vec::new();
    for architecture in &arguments.architecture {
        all.push(built(*architecture, &source, &tools, arguments.mirror.as_deref())?);
    }
    let mut artifacts = Tree::default();
    let mut platforms = Vec::new();
    for built in &all {
        let name = files::name(built.architecture);
        let tarball = files::tarball(&built.agent, built.architecture)?;
        artifacts.file(&format!("{name}.tar.gz"), packed(&tarball, source.time)?)?;
        artifacts.file(&format!("{name}.spdx.json"), built.sbom.clone())?;
        let layers = vec![("shunt", files::image(&built.agent, &built.sysroot)?)];
        platforms.push(Platform { architecture: built.architecture.name(), layers });
    }
    let image = Image::new(&arguments.image, &source, &platforms)?;
    start(&image, &arguments.architecture)?;
    let digest = image.digest().to_owned();
    let name = format!("shunt-{VERSION}-image.oci.tar");
    artifacts.file(&name, archive(&image.layout.files()?, source.time)?)?;

    // A registry of this machine has no digests that another one could ask for.
    let published = !repository_name.starts_with("localhost");
    let pin = published.then_some((repository_name, digest.as_str()));
    let chart = chart::package(&files, source.time, pin)?;
    let metadata = chart::metadata(&text(&files, &format!("{}/Chart.yaml", chart::CHART))?)?;
    let (layout, chart_digest) = chart::artifact(&metadata, chart.clone(), &source)?;
    artifacts.file(&format!("shunt-{VERSION}.tgz"), chart)?;
    let name = format!("shunt-{VERSION}-chart.oci.tar");
    artifacts.file(&name, archive(&layout.files()?, source.time)?)?;

    let name = format!("shunt-{VERSION}");
    let tree = files::copy(&files, |path| format!("{name}/{path}"))?;
    artifacts.file(&format!("{name}-source.tar.gz"), packed(&tree, source.time)?)?;

    let mut subjects = digests(&artifacts);
    for (name, digest) in [("image", &digest), ("chart", &chart_digest)] {
        subjects.push((format!("shunt-{VERSION}-{name}"), digest.replace("sha256:", "")));
    }
    let statement = provenance::statement(&inputs(&source, arguments, &tools, &all), &subjects);
    let name = format!("shunt-{VERSION}.provenance.json");
    artifacts.file(&name, format!("{statement:#}\n"))?;
    artifacts.file(SUMS, sums(&artifacts))?;

    let output = repository().join(&arguments.output);
    write(&artifacts, &output)?;
    let signed = sign::sign(&output, arguments.mirror.as_deref())?;
    report(&output, &source, &digest, &chart_digest, signed)
}

/// Builds the agent for one architecture and looks into the result.
fn built(
    architecture: Architecture,
    source: &Source,
    tools: &[(String, String)],
    mirror: Option<&str>,
) -> Result<Built> {
    let style = Style::of_stdout();
    println!("{}", style.bold(format!("==> {}", architecture.name())));
    let sysroot = Sysroot::prepare(architecture, mirror)?;
    let crates = crates::of(architecture.target())?;
    let agent = build::agent(architecture, &sysroot, source)?;
    let listed = binary::check(&agent, &crates)?;
    println!("the binary lists {listed} crates");
    let said = stdout(architecture.run(&agent).arg("version"))
        .with_context(|| format!("the agent for {} does not run", architecture.name()))?;
    ensure!(
        said.contains(&format!("commit {}", source.commit())),
        "the agent says another commit than {}: {said}",
        source.commit()
    );
    if architecture.emulator().is_none() {
        let mut once = Privilege::probe()?.isolated(&agent);
        stdout(once.args(["run", "--once", "--manifests", "examples/demo"]))
            .context("the agent does not program its rules into this kernel")?;
    }
    let digest =
        sha256(&fs::read(&agent).with_context(|| format!("cannot read {}", agent.display()))?);
    let tools: Vec<_> = tools
        .iter()
        .filter(|(name, _)| !name.ends_with("-gcc") || *name == architecture.compiler())
        .cloned()
        .collect();
    let sbom = sbom::document(&Materials {
        architecture,
        source,
        crates: &crates,
        packages: &sysroot.packages,
        tools: &tools,
        sha256: &digest,
    })?;
    let sbom = format!("{sbom:#}\n");
    let agent = files::agent(architecture, &agent, source, &crates, &sysroot, &sbom)?;
    Ok(Built { architecture, sysroot, crates, agent, sbom })
}

/// Unpacks the image and starts the agent in it, for each architecture.
fn start(image: &Image, architectures: &[Architecture]) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let layout = folder.path().join("image");
    image.layout.files()?.write(&layout)?;
    for architecture in architectures {
        image::check::check(&layout, Some(*architecture))
            .with_context(|| format!("the image for {}", architecture.name()))?;
        println!("the agent in the image for {} runs", architecture.name());
    }
    Ok(())
}

fn inputs<'a>(
    source: &'a Source,
    arguments: &'a Arguments,
    tools: &'a [(String, String)],
    all: &'a [Built],
) -> Inputs<'a> {
    let mut crates: Vec<&Crate> = all.iter().flat_map(|built| &built.crates).collect();
    crates.sort_by_key(|it| (&it.name, &it.version));
    crates.dedup_by_key(|it| (&it.name, &it.version));
    let packages = all
        .iter()
        .flat_map(|built| built.sysroot.packages.iter().map(|it| (built.architecture, it)))
        .collect();
    Inputs { source, image: &arguments.image, tools, crates, packages }
}

fn packed(tree: &Tree, time: u64) -> Result<Vec<u8>> {
    compress(&archive(tree, time)?)
}

fn text(tree: &Tree, path: &str) -> Result<String> {
    let found = tree.items().find_map(|(it, item)| match item {
        Item::File { content, .. } if it == path => Some(content),
        _ => None,
    });
    let content = found.with_context(|| format!("the source has no {path}"))?;
    String::from_utf8(content.clone()).with_context(|| format!("{path} is no text"))
}

/// Names and digests of the files.
fn digests(artifacts: &Tree) -> Vec<(String, String)> {
    let files = artifacts.items().filter_map(|(path, item)| match item {
        Item::File { content, .. } => Some((path.to_owned(), sha256(content))),
        _ => None,
    });
    files.collect()
}

/// The digests as `sha256sum --check` reads them.
fn sums(artifacts: &Tree) -> String {
    digests(artifacts).into_iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect()
}

/// Writes the artifacts into a folder; an earlier release that was there is replaced.
fn write(artifacts: &Tree, folder: &Path) -> Result<()> {
    if folder.exists() {
        ensure!(
            folder.join(SUMS).is_file() || fs::read_dir(folder)?.next().is_none(),
            "{} has something else than a release in it; choose another folder with --output",
            folder.display()
        );
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    artifacts.write(folder)
}

fn report(folder: &Path, source: &Source, image: &str, chart: &str, signed: bool) -> Result<()> {
    let style = Style::of_stdout();
    println!("\n{} {VERSION}, commit {}", style.bold("shunt"), source.commit());
    print!("{}", fs::read_to_string(folder.join(SUMS))?);
    println!("{} {image}", style.bold("image:"));
    println!("{} {chart}", style.bold("chart:"));
    println!("{} {}", style.bold("folder:"), folder.display());
    match signed {
        true => println!("{}", style.green(format!("signed: {SUMS}.sig; the key is cosign.pub"))),
        false => println!(
            "{}",
            style.red(format!(
                "NOT SIGNED: {} is not set. Do not publish this without a signature.",
                sign::KEY
            ))
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::command;

    #[test]
    fn digests_are_those_that_sha256sum_reads() {
        let mut artifacts = Tree::default();
        artifacts.file("b.txt", "two").unwrap();
        artifacts.file("a.txt", "one").unwrap();
        artifacts.file(SUMS, sums(&artifacts)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("artifacts");
        write(&artifacts, &output).unwrap();
        let check = || stdout(command("sha256sum").args(["--check", SUMS]).current_dir(&output));
        assert_eq!(check().unwrap(), "a.txt: OK\nb.txt: OK\n");
        fs::write(output.join("a.txt"), "three").unwrap();
        assert!(check().is_err());

        // Again into the same folder, but into no other.
        write(&artifacts, &output).unwrap();
        assert!(write(&artifacts, folder.path()).is_err());
        check().unwrap();
    }

    #[test]
    fn an_archive_of_the_same_files_is_the_same() {
        let tree = || {
            let mut tree = Tree::default();
            tree.program("shunt/bin", vec![1, 2]).unwrap();
            packed(&tree, 17).unwrap()
        };
        assert_eq!(tree(), tree());
    }
}
