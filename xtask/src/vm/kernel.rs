//! Kernels to boot: packages of Debian and Ubuntu, kept with their digests, or local ones.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::{command, run};
use crate::digest::sha256;
use crate::mirror::{Archive, Package, Suite};

/// A line of kernels, and where its newest is.
pub(super) struct Line {
    /// What it is called: in arguments, in reports, in `docs/kernels.md`.
    pub(super) name: &'static str,
    suite: &'static str,
    archive: Archive,
    /// Start of the names of the packages; the rest is the kernel's release. The first one has the
    /// kernel.
    packages: &'static [&'static str],
    /// How the release starts.
    release: &'static str,
    /// How the release ends: Debian's kernel for clouds is small, and has drivers for QEMU's devices.
    flavour: &'static str,
}

/// All lines. A suite drops old packages at every update, so none is named in full.
pub(super) const LINES: [Line; 6] = [
    Line {
        name: "5.10",
        suite: "bullseye-security",
        archive: Archive::DebianSecurity,
        packages: &["linux-image-"],
        release: "5.10.",
        flavour: "-cloud-amd64",
    },
    // Not that of RHEL 9, which has many changes of later kernels.
    Line {
        name: "5.14",
        suite: "focal-updates",
        archive: Archive::Ubuntu,
        packages: &["linux-image-unsigned-", "linux-modules-"],
        release: "5.14.",
        flavour: "-oem",
    },
    Line {
        name: "5.15",
        suite: "jammy-updates",
        archive: Archive::Ubuntu,
        packages: &["linux-image-unsigned-", "linux-modules-", "linux-modules-extra-"],
        release: "5.15.",
        flavour: "-generic",
    },
    Line {
        name: "6.1",
        suite: "bookworm-security",
        archive: Archive::DebianSecurity,
        packages: &["linux-image-"],
        release: "6.1.",
        flavour: "-cloud-amd64",
    },
    Line {
        name: "6.12",
        suite: "bookworm-security",
        archive: Archive::DebianSecurity,
        packages: &["linux-image-"],
        release: "6.12.",
        flavour: "+deb12-cloud-amd64",
    },
    Line {
        name: "7",
        suite: "sid",
        archive: Archive::Debian,
        packages: &["linux-binary-", "linux-modules-"],
        release: "7.",
        flavour: "-cloud-amd64",
    },
];

/// The kernel lines that are tested by default.
pub(super) const DEFAULT: [&str; 3] = ["6.1", "6.12", "7"];

/// A kernel, ready to be booted.
pub(super) struct Kernel {
    /// The name of its line, or of the file it was taken from.
    pub(super) name: String,
    /// As `uname -r` says it.
    pub(super) release: String,
    /// The kernel itself, compressed as boot loaders take it.
    pub(super) image: PathBuf,
    /// Its modules, the folder called `kernel`.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// The newest kernel of a line: fetched, or, where nothing can be fetched, the one that was
    /// fetched last.
    pub(super) fn of(line: &Line, cache: &Path, mirror: Option<&str>) -> Result<Self> {
        let folder = cache.join("packages").join(line.name);
        let record = Record::read(&folder)?;
        let packages = match line.fetch(&folder, cache, mirror, record.as_ref()) {
            Ok(packages) => packages,
            Err(error) => match record {
                Some(record) => {
                    println!("kernel {}: using what was fetched before: {error:#}", line.name);
                    record.verified(&folder)?
                }
                None => bail!(
                    "there is no kernel {}: none was fetched before, and none can be now: {error:#}",
                    line.name
                ),
            },
        };
        let digest = sha256(format!("{packages:?}").as_bytes());
        Self::unpacked(line.name, &packages, &cache.join("unpacked").join(&digest[..16]))
    }

    /// A local kernel: packages in a folder, one package, or the folder of an unpacked
    /// one.
    pub(super) fn at(path: &Path, cache: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if path.is_dir() {
            return Self::find(&name, path);
        }
        ensure!(
            path.extension().is_some_and(|extension| extension == "deb"),
            "{} is neither a line of kernels ({}), nor a folder with boot/vmlinuz-RELEASE and \
             lib/modules/RELEASE, nor a package (.deb) of both",
            path.display(),
            LINES.map(|line| line.name).join(", ")
        );
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let folder = cache.join("unpacked").join(&sha256(&content)[..16]);
        Self::unpacked(&name, &[path.to_owned()], &folder)
    }

    fn unpacked(name: &str, packages: &[PathBuf], folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            let growing = folder.with_extension("growing");
            let _ = fs::remove_dir_all(&growing);
            fs::create_dir_all(&growing)
                .with_context(|| format!("cannot make {}", growing.display()))?;
            for package in packages {
                run(command("dpkg-deb").arg("-x").arg(package).arg(&growing))?;
            }
            fs::rename(&growing, folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Self::find(name, folder)
    }

    /// The kernel in a folder that is laid out like a package.
    fn find(name: &str, folder: &Path) -> Result<Self> {
        let roots = ["lib/modules", "usr/lib/modules"].map(|root| folder.join(root));
        let releases: Vec<PathBuf> = roots
            .iter()
            .filter_map(|root| fs::read_dir(root).ok())
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|release| release.join("kernel").is_dir())
            .collect();
        let [modules] = &releases[..] else {
            bail!("{} has modules of {} kernels, not of one", folder.display(), releases.len());
        };
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let images = [folder.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")];
        let image = images.into_iter().find(|image| image.is_file()).with_context(|| {
            format!("{} has modules of {release}, but no kernel", folder.display())
        })?;
        Ok(Self { name: name.to_owned(), image, modules: modules.join("kernel"), release })
    }
}

impl Line {
    /// The line of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        LINES.iter().find(|line| line.name == name)
    }

    /// The newest packages; fetched unless `record` has them already.
    fn fetch(
        &self,
        folder: &Path,
        cache: &Path,
        mirror: Option<&str>,
        record: Option<&Record>,
    ) -> Result<Vec<PathBuf>> {
        let suite = Suite::new(cache, self.suite, self.archive, mirror);
        suite.refresh()?;
        let names = suite.names()?;
        let release = self
            .newest(&names)
            .with_context(|| format!("{} has no kernel {} any more", self.suite, self.name))?;
        let packages: Vec<Package> = self
            .packages
            .iter()
            .map(|package| suite.package(&format!("{package}{release}")))
            .collect::<Result<_>>()?;
        if let Some(record) = record.filter(|record| record.is_of(&packages)) {
            return record.verified(folder);
        }
        println!("kernel {}: fetching {release} from {}", self.name, self.suite);
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for package in &packages {
            suite.download(package, folder)?;
        }
        let record = Record::of(&packages);
        let files = record.verified(folder)?;
        record.write(folder)?;
        Ok(files)
    }

    /// The newest release of which there are all packages.
    fn newest(&self, names: &[String]) -> Option<String> {
        let releases = |package: &str| -> Vec<&str> {
            names
                .iter()
                .filter_map(|name| name.strip_prefix(package))
                .filter(|release| release.starts_with(self.release))
                .filter(|release| release.ends_with(self.flavour))
                // Packages for other suites have words in front of the flavour.
                .filter(|release| !release.contains("deb11"))
                .collect()
        };
        let (first, others) = self.packages.split_first()?;
        releases(first)
            .into_iter()
            .filter(|release| others.iter().all(|other| releases(other).contains(release)))
            .max_by_key(|release| numbers(release))
            .map(str::to_owned)
    }
}

/// The numbers of a release, by which it is older or newer than others.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// What was fetched, beside it: a line `SHA256 NAME VERSION` for each package.
struct Record(Vec<[String; 3]>);

impl Record {
    fn file(folder: &Path) -> PathBuf {
        folder.join("packages")
    }

    fn of(packages: &[Package]) -> Self {
        let line = |it: &Package| [it.sha256.clone(), it.name.clone(), it.version.clone()];
        Self(packages.iter().map(line).collect())
    }

    fn is_of(&self, packages: &[Package]) -> bool {
        self.0 == Self::of(packages).0
    }

    fn read(folder: &Path) -> Result<Option<Self>> {
        let file = Self::file(folder);
        let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
        let lines = text.lines().map(|line| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            words.try_into().ok()
        });
        let lines: Option<Vec<[String; 3]>> = lines.collect();
        let lines = lines.filter(|lines| !lines.is_empty());
        let lines = lines.with_context(|| {
            format!("{} is damaged; remove the folder that it is in", file.display())
        })?;
        Ok(Some(Self(lines)))
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let text: String = self.0.iter().map(|line| line.join(" ") + "\n").collect();
        fs::write(Self::file(folder), text).context("cannot note what was fetched")
    }

    /// The files, if they still are what they were.
    fn verified(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        self.0.iter().map(|[wanted, name, _]| {
            let file = folder.join(format!("{name}.deb"));
            let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let digest = sha256(&content);
            ensure!(
                digest == *wanted,
                "{} has the SHA-256 {digest} and not {wanted}, which the signed index gave it; remove it",
                file.display()
            );
            Ok(file)
        }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_that_of_the_highest_numbers() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-48-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64-unsigned",
            "linux-image-6.1.0-0.deb11.52-cloud-amd64",
            "linux-image-6.1-cloud-amd64",
            "linux-image-6.1.0-57-amd64",
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-7.3.1+deb14-cloud-amd64",
            "linux-binary-7.2.13+deb14-cloud-amd64",
            "linux-modules-7.2.13+deb14-cloud-amd64",
            "linux-binary-7.3.1+deb14-cloud-amd64",
        ]
        .map(str::to_owned);
        let newest = |line: &str| Line::named(line).unwrap().newest(&names);
        assert_eq!(newest("6.1").as_deref(), Some("6.1.0-48-cloud-amd64"));
        assert_eq!(newest("6.12").as_deref(), Some("6.12.117+deb12-cloud-amd64"));
        // Its modules have not arrived yet.
        assert_eq!(newest("7").as_deref(), Some("7.2.13+deb14-cloud-amd64"));
        assert_eq!(newest("5.10"), None);
    }

    #[test]
    fn a_package_that_changed_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let package = |content: &str| Package {
            name: "linux".into(),
            version: "1".into(),
            sha256: sha256(content.as_bytes()),
        };
        fs::write(folder.path().join("linux.deb"), "content").unwrap();
        Record::of(&[package("content")]).write(folder.path()).unwrap();
        let record = Record::read(folder.path()).unwrap().unwrap();
        assert!(record.is_of(&[package("content")]) && !record.is_of(&[package("other")]));
        assert_eq!(record.verified(folder.path()).unwrap().len(), 1);
        fs::write(folder.path().join("linux.deb"), "other").unwrap();
        assert!(record.verified(folder.path()).is_err());
    }
}
