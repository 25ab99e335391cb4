//! The C libraries that are linked into released binaries: Debian's packages, unpacked into a folder.
//!
//! The packages of one suite serve both architectures, whatever this machine runs. apt verifies them
//! by the archive's signed index.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::architecture::Architecture;
use crate::command::{command, output, repository, run, stdout};
use crate::digest::sha256;
use crate::mirror::{Archive, Package, Suite};

/// The release of Debian, and its number.
pub(crate) const RELEASE: (&str, &str) = ("trixie", "13");

const SUITES: [(&str, Archive); 2] =
    [(RELEASE.0, Archive::Debian), ("trixie-security", Archive::DebianSecurity)];

/// Where packages and sysroots are kept.
const FOLDER: &str = "target/sysroot";

/// Packages whose code becomes part of the binary.
const LINKED: [&str; 3] = ["libc6-dev", "libmnl-dev", "libnftnl-dev"];

/// Packages with headers and with texts of licences only.
const OTHERS: [&str; 2] = ["linux-libc-dev", "base-files"];

/// A package of Debian that was used.
#[derive(Clone, Debug)]
pub(crate) struct DebianPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The name and the version of the source package.
    pub(crate) source: (String, String),
    /// The digest of the package's file.
    pub(crate) sha256: String,
    /// The fields of the package, as dpkg keeps them.
    pub(crate) control: String,
    /// Whether code of it is in the binary.
    pub(crate) linked: bool,
}

/// Headers and static libraries for one architecture.
pub(crate) struct Sysroot {
    pub(crate) folder: PathBuf,
    pub(crate) packages: Vec<DebianPackage>,
}

impl Sysroot {
    /// Fetches the packages and unpacks them. `mirror` is where folders `debian` and `debian-security`
    /// are; the default is the mirror of this machine's apt.
    pub(crate) fn prepare(architecture: Architecture, mirror: Option<&str>) -> Result<Self> {
        let base = repository().join(FOLDER).join(architecture.name());
        let suites = suites(&base, architecture, mirror)?;
        let mut files = Vec::new();
        let mut packages = Vec::new();
        for name in LINKED.into_iter().chain(OTHERS) {
            let (suite, package) = newest(&suites, name)?;
            let file = fetch(suite, &package, &base.join("packages"))?;
            let control = stdout(command("dpkg-deb").arg("--field").arg(&file))?;
            files.push(file);
            packages.push(DebianPackage {
                source: source(&control, &package),
                name: package.name,
                version: package.version,
                sha256: package.sha256,
                control,
                linked: LINKED.contains(&name),
            });
        }
        let digests: String = packages.iter().map(|package| package.sha256.as_str()).collect();
        let folder = base.join("root");
        let stamp = base.join("root.sha256");
        if fs::read_to_string(&stamp).ok().as_ref() != Some(&digests) {
            unpack(&files, &base, &folder)?;
            fs::write(&stamp, digests)
                .with_context(|| format!("cannot write {}", stamp.display()))?;
        }
        Ok(Self { folder, packages })
    }

    /// Returns the packages whose code is in the binary.
    pub(crate) fn linked(&self) -> impl Iterator<Item = &DebianPackage> {
        self.packages.iter().filter(|package| package.linked)
    }
}

/// Unpacks packages into a folder, which appears when it is complete.
fn unpack(files: &[PathBuf], base: &Path, folder: &Path) -> Result<()> {
    let unpacked = tempfile::tempdir_in(base).context("cannot make a temporary folder")?;
    for file in files {
        run(command("dpkg-deb").arg("--extract").arg(file).arg(unpacked.path()))?;
    }
    for name in ["lib", "lib64"] {
        let path = unpacked.path().join(name);
        if !path.exists() {
            symlink(format!("usr/{name}"), &path)
                .with_context(|| format!("cannot link {}", path.display()))?;
        }
    }
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::rename(unpacked.keep(), folder)
        .with_context(|| format!("cannot put packages into {}", folder.display()))
}

/// Fetches a package with a program for this machine; the folder that it is unpacked into.
pub(crate) fn tool(name: &str, mirror: Option<&str>) -> Result<PathBuf> {
    let native = Architecture::ALL.into_iter().find(|it| it.emulator().is_none());
    let native = native.with_context(|| format!("there is no {name} here; install it"))?;
    let base = repository().join(FOLDER).join(native.name());
    let suites = suites(&base, native, mirror)?;
    let (suite, package) = newest(&suites, name)?;
    let file = fetch(suite, &package, &base.join("packages"))?;
    let folder = base.join(name);
    run(command("dpkg-deb").arg("--extract").arg(&file).arg(&folder))?;
    Ok(folder)
}

/// The suites, with recent lists.
fn suites(base: &Path, architecture: Architecture, mirror: Option<&str>) -> Result<[Suite; 2]> {
    let suites =
        SUITES.map(|(name, part)| Suite::new(base, name, part, mirror).of(architecture.name()));
    suites.iter().try_for_each(Suite::refresh)?;
    Ok(suites)
}

/// Fetches a package, unless the right file is there.
fn fetch(suite: &Suite, package: &Package, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let kept = folder.join(format!("{}.deb", package.name));
    if fs::read(&kept).is_ok_and(|bytes| sha256(&bytes) == package.sha256) {
        return Ok(kept);
    }
    suite.download(package, folder)
}

/// The newest version of a package in these suites.
fn newest<'a>(suites: &'a [Suite], name: &str) -> Result<(&'a Suite, Package)> {
    let mut found: Option<(&Suite, Package)> = None;
    for suite in suites {
        // Not every package had a security update.
        let Ok(package) = suite.package(name) else { continue };
        let newer = match &found {
            None => true,
            Some((_, known)) => is_newer(&package.version, &known.version)?,
        };
        if newer {
            found = Some((suite, package));
        }
    }
    found.with_context(|| format!("Debian {} has no package {name}", RELEASE.0))
}

fn is_newer(version: &str, than: &str) -> Result<bool> {
    let compared = output(command("dpkg").args(["--compare-versions", version, "gt", than]))?;
    Ok(compared.status.success())
}

/// The source package: `Source: name (version)`, of which both are left out where they are the
/// package's own.
fn source(control: &str, package: &Package) -> (String, String) {
    let field = control.lines().find_map(|line| line.strip_prefix("Source: "));
    let (name, version) = match field.and_then(|field| field.split_once(" (")) {
        Some((name, version)) => (name, version.trim_end_matches(')')),
        None => (field.unwrap_or(&package.name), package.version.as_str()),
    };
    (name.to_owned(), version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_package_is_named_where_it_differs() {
        let package =
            Package { name: "libc6-dev".into(), version: "2.41-12".into(), sha256: String::new() };
        let of = |control: &str| source(control, &package);
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(of("Package: libc6-dev\nSource: glibc"), pair("glibc", "2.41-12"));
        assert_eq!(of("Source: glibc (2.41-11)\n"), pair("glibc", "2.41-11"));
        assert_eq!(of("Package: libc6-dev\n"), pair("libc6-dev", "2.41-12"));
    }

    #[test]
    fn versions_are_compared_as_debian_does() {
        assert!(is_newer("2.41-12+deb13u4", "2.41-12").unwrap());
        assert!(!is_newer("2.41-12~rc1", "2.41-12").unwrap());
    }
}
