//! The archives of Debian and Ubuntu, without root: apt with lists and a cache of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::{command, output, repository, stdout};
use crate::packages::KEYRING;

/// Where Debian is if this machine's apt does not say it: the archive's own name.
const DEFAULT: &str = "http://deb.debian.org";

/// The key of Ubuntu's archive since 2018 (`ubuntu-keyring`), which Debian does not have. Its
/// fingerprint is F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C.
const UBUNTU_KEY: &str = "vm-tests/keys/ubuntu-archive-2018.asc";

/// How old lists may be before they are asked for again.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// An archive of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archive {
    /// Debian's releases.
    Debian,
    /// Security updates of Debian's releases.
    DebianSecurity,
    /// Ubuntu's releases, with their updates.
    Ubuntu,
}

impl Archive {
    /// The folder of a mirror.
    fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::DebianSecurity => "debian-security",
            Self::Ubuntu => "ubuntu",
        }
    }

    fn address(self) -> Result<String> {
        match configured(self) {
            Some(address) => Ok(address),
            None if self == Self::Ubuntu => bail!(
                "this machine's apt does not say where Ubuntu is; name a mirror by --mirror, an \
                 address with a folder `ubuntu`"
            ),
            None => Ok(format!("{DEFAULT}/{}", self.name())),
        }
    }

    /// The file of the key that signs the archive.
    fn key(self) -> PathBuf {
        match self {
            Self::Debian | Self::DebianSecurity => KEYRING.into(),
            Self::Ubuntu => repository().join(UBUNTU_KEY),
        }
    }
}

/// A package as the archive's index has it.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

/// One suite of an archive.
pub(crate) struct Suite {
    folder: PathBuf,
    name: &'static str,
    archive: Archive,
    base: Option<String>,
    architecture: &'static str,
}

impl Suite {
    /// A suite, whose lists are kept below `folder`. `mirror` is where the folders of the archives
    /// are, if an argument says it.
    pub(crate) fn new(
        folder: &Path,
        name: &'static str,
        archive: Archive,
        mirror: Option<&str>,
    ) -> Self {
        let base =
            mirror.map(|mirror| format!("{}/{}", mirror.trim_end_matches('/'), archive.name()));
        let folder = folder.join("apt").join(name);
        Self { folder, name, archive, base, architecture: "amd64" }
    }

    /// The same suite for another architecture than amd64, by Debian's name; its lists need a folder
    /// of their own.
    pub(crate) fn of(self, architecture: &'static str) -> Self {
        Self { architecture, ..self }
    }

    /// Fetch the lists of the suite, unless they are recent.
    pub(crate) fn refresh(&self) -> Result<()> {
        let mark = self.folder.join("refreshed");
        let refreshed = fs::metadata(&mark).and_then(|mark| mark.modified()).ok();
        let age = refreshed.and_then(|refreshed| refreshed.elapsed().ok());
        if age.is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(self.folder.join(folder)).context("cannot make apt's folders")?;
        }
        File::create(self.folder.join("status")).context("cannot make apt's files")?;
        let key = self.archive.key();
        ensure!(
            key.is_file(),
            "there is no {}, by which packages are verified; Debian's keys are in Debian's and \
             Ubuntu's package debian-archive-keyring",
            key.display()
        );
        let base = self.base.clone().map_or_else(|| self.archive.address(), Ok)?;
        let sources = format!(
            "Types: deb\nURIs: {base}\nSuites: {}\nComponents: main\nArchitectures: {}\n\
             Signed-By: {}\n",
            self.name,
            self.architecture,
            key.display()
        );
        fs::write(self.folder.join("suite.sources"), sources)
            .context("cannot write apt's sources")?;
        let mut update = self.apt("apt-get");
        // Without it an archive that cannot be reached is a warning.
        update.args(["-o", "APT::Update::Error-Mode=any", "update", "--quiet"]);
        stdout(&mut update).with_context(|| format!("cannot fetch the lists of {}", self.name))?;
        File::create(&mark).context("cannot note when lists were fetched")?;
        Ok(())
    }

    /// The names of all its packages.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let names = stdout(self.apt("apt-cache").arg("pkgnames"))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// What the index says of a package.
    pub(crate) fn package(&self, name: &str) -> Result<Package> {
        let text = stdout(self.apt("apt-cache").args(["show", "--no-all-versions", name]))?;
        let fields: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once(": ")).collect();
        let field = |field| {
            let value = fields.get(field).with_context(|| format!("{name} has no {field}"))?;
            anyhow::Ok((*value).to_owned())
        };
        Ok(Package { name: name.to_owned(), version: field("Version")?, sha256: field("SHA256")? })
    }

    /// Fetch a package into `folder`; apt verifies it by the signed index. The file.
    pub(crate) fn download(&self, package: &Package, folder: &Path) -> Result<PathBuf> {
        let arriving = self.folder.join("arriving");
        let _ = fs::remove_dir_all(&arriving);
        fs::create_dir_all(&arriving).context("cannot make a folder for a package")?;
        let wanted = format!("{}={}", package.name, package.version);
        let mut download = self.apt("apt-get");
        download.args(["download", "--quiet", &wanted]).current_dir(&arriving);
        stdout(&mut download).with_context(|| format!("cannot fetch {wanted}"))?;
        let mut files = fs::read_dir(&arriving)?;
        let Some(file) = files.next() else { bail!("apt-get fetched no file for {wanted}") };
        let file = file?.path();
        let kept = folder.join(format!("{}.deb", package.name));
        fs::rename(&file, &kept)
            .with_context(|| format!("cannot put {} into {}", file.display(), folder.display()))?;
        Ok(kept)
    }

    /// One of apt's programs, kept to the folder of the suite. Proxies and the like stay as they are
    /// configured on this machine.
    fn apt(&self, program: &str) -> Command {
        let mut apt = command(program);
        let at = |path: &str| self.folder.join(path).display().to_string();
        for (option, value) in [
            ("Dir::State", at("")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("")),
            ("Dir::Cache::archives", at("archives")),
            ("Dir::Etc::sourcelist", at("suite.sources")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferences", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("APT::Architecture", self.architecture.into()),
            ("APT::Architectures", self.architecture.into()),
            ("Acquire::Languages", "none".into()),
            // As root, apt would fetch as a user who cannot write to our folders.
            ("APT::Sandbox::User", "root".into()),
        ] {
            apt.arg("-o").arg(format!("{option}={value}"));
        }
        apt
    }
}

/// Where this machine's apt fetches an archive from, if it is the archive of this machine.
fn configured(archive: Archive) -> Option<String> {
    let system = fs::read_to_string("/etc/os-release").ok()?;
    let targets = output(command("apt-get").args([
        "indextargets",
        "--format",
        "$(RELEASE) $(REPO_URI)",
        "Created-By: Packages",
    ]));
    let targets = targets.ok().filter(|targets| targets.status.success())?;
    mirror_of(archive, &system, &String::from_utf8_lossy(&targets.stdout))
}

/// The same, from what `/etc/os-release` and apt say.
fn mirror_of(archive: Archive, system: &str, targets: &str) -> Option<String> {
    let field = |name: &str| {
        let value = system.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    let id = if archive == Archive::Ubuntu { "ubuntu" } else { "debian" };
    if field("ID")? != id {
        return None;
    }
    let codename = field("VERSION_CODENAME")?;
    let release = match archive {
        Archive::Debian | Archive::Ubuntu => codename.to_owned(),
        Archive::DebianSecurity => format!("{codename}-security"),
    };
    targets.lines().find_map(|line| {
        let (its_release, address) = line.split_once(' ')?;
        (its_release == release).then(|| address.trim_end_matches('/').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON_DEBIAN: &str = "PRETTY_NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
    const TARGETS: &str = "bookworm-security http://mirror.example/debian-security/\n\
                           bookworm http://mirror.example/debian/\n";
    const ON_UBUNTU: &str = "ID=ubuntu\nVERSION_CODENAME=noble\n";

    #[test]
    fn a_machine_knows_the_mirror_of_its_own_archive() {
        let mirror = |archive| mirror_of(archive, ON_DEBIAN, TARGETS);
        assert_eq!(mirror(Archive::Debian).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(
            mirror(Archive::DebianSecurity).as_deref(),
            Some("http://mirror.example/debian-security")
        );
        let targets = "noble http://mirror.example/ubuntu/\n";
        assert_eq!(
            mirror_of(Archive::Ubuntu, ON_UBUNTU, targets).as_deref(),
            Some("http://mirror.example/ubuntu")
        );
    }

    #[test]
    fn others_do_not() {
        let targets = "noble http://mirror.example/ubuntu/\n";
        assert_eq!(mirror_of(Archive::Debian, ON_UBUNTU, targets), None);
        assert_eq!(mirror_of(Archive::Ubuntu, ON_DEBIAN, TARGETS), None);
        assert_eq!(mirror_of(Archive::Debian, ON_DEBIAN, ""), None);
    }
}
