//! Kernels of Debian and Ubuntu: fetched by an apt of its own, which verifies them and needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::shell;
use crate::command::{command, output, repository, run, stdout};
use crate::packages::KEYRING;

/// Where Debian is on a machine that is no Debian.
const DEFAULT: &str = "http://deb.debian.org";

/// The key of Ubuntu's archive since 2018, F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C.
const UBUNTU_KEY: &str = "vm-tests/keys/ubuntu-archive-2018.asc";

/// A line of kernels: name, archive, suite, how names of its packages begin (the first one has the
/// kernel), and how the release begins and ends. Suites drop old packages, so none is named in full.
type Line =
    (&'static str, &'static str, &'static str, &'static [&'static str], &'static str, &'static str);

const IMAGE: &[&str] = &["linux-image-"];
const LINES: [Line; 6] = [
    ("5.10", "debian-security", "bullseye-security", IMAGE, "5.10.", "-cloud-amd64"),
    (
        "5.14",
        "ubuntu",
        "focal-updates",
        &["linux-image-unsigned-", "linux-modules-"],
        "5.14.",
        "-oem",
    ),
    (
        "5.15",
        "ubuntu",
        "jammy-updates",
        &["linux-image-unsigned-", "linux-modules-", "linux-modules-extra-"],
        "5.15.",
        "-generic",
    ),
    ("6.1", "debian-security", "bookworm-security", IMAGE, "6.1.", "-cloud-amd64"),
    ("6.12", "debian-security", "bookworm-security", IMAGE, "6.12.", "+deb12-cloud-amd64"),
    ("7", "debian", "sid", &["linux-binary-", "linux-modules-"], "7.", "-cloud-amd64"),
];

/// What the machine needs: packet filtering, lists of sockets, and the devices of the testbed.
const MODULES: &str = "net/netfilter/*.ko* net/netfilter/ipvs/*.ko* net/ipv4/netfilter/*.ko* \
    net/ipv6/netfilter/*.ko* net/bridge/*.ko* net/ipv4/tcp_diag.ko* net/ipv4/udp_diag.ko* \
    drivers/net/veth.ko* drivers/net/dummy.ko*";

/// Puts these modules and what they depend on below `$2/usr`, with an index for modprobe. To verify
/// signatures takes an emulated processor seconds: strip removes them.
const INSTALL: &str = r#"set -e
root=$1 to=$2 release=$3 patterns=$4
depmod -b "$root" "$release"
from=$root/lib/modules/$release
cd "$from/kernel"
names=$(for file in $patterns; do basename "$file" | sed 's/\.ko.*//'; done)
mkdir -p "$to/usr/lib/modules/$release"
# Not all packages have these.
cp "$from"/modules.builtin* "$from/modules.order" "$to/usr/lib/modules/$release/" || true
modprobe -S "$release" -d "$root" --show-depends --all $names 2>&1 |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
    path=$(realpath --relative-to="$from" "$file")
    mkdir -p "$to/usr/lib/modules/$release/$(dirname "$path")"
    cp "$file" "$to/usr/lib/modules/$release/$path"
done
cd "$to/usr/lib/modules/$release"
find kernel -name '*.xz' -exec xz -d {} +
find kernel -name '*.zst' -exec zstd -q -d --rm {} +
find kernel -name '*.ko' -exec strip --strip-debug {} +
depmod -b "$to/usr" "$release""#;

/// A kernel, unpacked.
pub(super) struct Kernel {
    /// The name of its line, or of its folder.
    pub(super) name: String,
    /// As `uname -r` says it.
    pub(super) release: String,
    folder: PathBuf,
}

impl Kernel {
    /// The newest kernel of a line, or the one in a folder that is laid out like its package.
    pub(super) fn of(wanted: &str, cache: &Path, mirror: Option<&str>) -> Result<Self> {
        let Some(line) = LINES.iter().find(|line| line.0 == wanted) else {
            let folder = fs::canonicalize(wanted).with_context(|| {
                format!(
                    "{wanted} is not a folder, nor one of {}",
                    LINES.map(|line| line.0).join(", ")
                )
            })?;
            let mut releases = fs::read_dir(folder.join("lib/modules"))?;
            let release = releases.next().context("no modules")??.file_name();
            let release = release.to_string_lossy().into_owned();
            return Ok(Self { name: "own".to_owned(), release, folder });
        };
        let kept = cache.join("kernels").join(wanted);
        fs::create_dir_all(&kept)?;
        let release = match newest(line, cache, mirror) {
            Ok(release) => release,
            Err(error) => {
                let kept = fs::read_dir(&kept)?.flatten().map(|entry| entry.file_name());
                let last = kept.map(|name| name.to_string_lossy().into_owned());
                let last =
                    last.filter(|name| name.starts_with(line.4)).max_by_key(|it| numbers(it));
                let Some(last) = last else { return Err(error) };
                println!("kernel {wanted}: using {last}, fetched earlier: {error:#}");
                last
            }
        };
        let folder = kept.join(&release);
        if !folder.exists() {
            println!("kernel {wanted}: fetching {release}");
            let growing = kept.join("growing");
            let _ = fs::remove_dir_all(&growing);
            fs::create_dir_all(&growing)?;
            let names: Vec<String> = line.3.iter().map(|it| format!("{it}{release}")).collect();
            let mut download = apt(line, cache, "apt-get");
            stdout(download.args(["download", "--quiet"]).args(&names).current_dir(&growing))?;
            let unpack = "set -e; for file in *.deb; do dpkg-deb -x \"$file\" .; rm \"$file\"; done
                [ -e lib ] || ln -s usr/lib lib";
            run(shell(unpack).current_dir(&growing))?;
            fs::rename(&growing, &folder)?;
        }
        Ok(Self { name: wanted.to_owned(), release, folder })
    }

    /// The kernel itself, as boot loaders take it.
    pub(super) fn image(&self) -> Result<PathBuf> {
        let release = &self.release;
        let places = [format!("boot/vmlinuz-{release}"), format!("lib/modules/{release}/vmlinuz")];
        let mut places = places.into_iter().map(|place| self.folder.join(place));
        places.find(|place| place.is_file()).with_context(|| format!("{release} has no kernel"))
    }

    /// Puts the modules that a machine needs below a folder.
    pub(super) fn install_modules(&self, to: &Path) -> Result<()> {
        let mut install = shell(INSTALL);
        run(install.arg(&self.folder).arg(to).args([&self.release, MODULES]))?;
        let netfilter = to.join("usr/lib/modules").join(&self.release).join("kernel/net/netfilter");
        ensure!(netfilter.is_dir(), "{} has no modules of packet filtering", self.release);
        Ok(())
    }
}

/// The newest release of a line, by lists of today.
fn newest(line: &Line, cache: &Path, mirror: Option<&str>) -> Result<String> {
    let (name, archive, suite, packages, start, end) = *line;
    let folder = cache.join("apt").join(name);
    fs::create_dir_all(folder.join("archives/partial"))?;
    fs::create_dir_all(folder.join("lists/partial"))?;
    fs::write(folder.join("status"), "")?;
    let base = match mirror {
        Some(mirror) => format!("{}/{archive}", mirror.trim_end_matches('/')),
        None => machines_mirror(archive)?,
    };
    let ubuntu_key = repository().join(UBUNTU_KEY);
    let key = if archive == "ubuntu" { ubuntu_key.as_path() } else { Path::new(KEYRING) };
    let sources = format!(
        "Types: deb\nURIs: {base}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\n\
         Signed-By: {}\n",
        key.display()
    );
    fs::write(folder.join("suite.sources"), sources)?;
    let mut update = apt(line, cache, "apt-get");
    // Without it an archive that cannot be reached is a warning.
    stdout(update.args(["-o", "APT::Update::Error-Mode=any", "update", "--quiet"]))?;
    let names = stdout(apt(line, cache, "apt-cache").arg("pkgnames"))?;
    let releases = |package: &str| -> Vec<String> {
        let releases = names.lines().filter_map(|name| name.strip_prefix(package));
        let of_line =
            |it: &&str| it.starts_with(start) && it.ends_with(end) && !it.contains("deb11");
        releases.filter(of_line).map(str::to_owned).collect()
    };
    let is_whole = |it: &String| packages.iter().all(|package| releases(package).contains(it));
    let found = releases(packages[0]).into_iter().filter(is_whole);
    found.max_by_key(|it| numbers(it)).with_context(|| format!("{suite} has no kernel {name}"))
}

/// The numbers of a release, by which it is older or newer than others.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Where this machine's apt fetches an archive from.
fn machines_mirror(archive: &str) -> Result<String> {
    let targets = output(command("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]))?;
    let targets = String::from_utf8_lossy(&targets.stdout).into_owned();
    let mut addresses = targets.lines().map(|line| line.trim_end_matches('/'));
    match addresses.find(|address| address.ends_with(&format!("/{archive}"))) {
        Some(address) => Ok(address.to_owned()),
        None if archive == "ubuntu" => bail!("give --mirror: an address with a folder `ubuntu`"),
        None => Ok(format!("{DEFAULT}/{archive}")),
    }
}

/// One of apt's programs, kept to a folder of its own.
fn apt(line: &Line, cache: &Path, program: &str) -> Command {
    let folder = cache.join("apt").join(line.0).display().to_string();
    let mut apt = command(program);
    for option in [
        format!("Dir::State={folder}"),
        format!("Dir::State::status={folder}/status"),
        format!("Dir::Cache={folder}"),
        format!("Dir::Etc::sourcelist={folder}/suite.sources"),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        "Dir::Etc::preferencesparts=/dev/null".to_owned(),
        "APT::Architecture=amd64".to_owned(),
        "APT::Architectures=amd64".to_owned(),
        "Acquire::Languages=none".to_owned(),
        // As root, apt would fetch as a user who cannot write to this folder.
        "APT::Sandbox::User=root".to_owned(),
    ] {
        apt.arg("-o").arg(option);
    }
    apt
}
