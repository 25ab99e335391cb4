//! Whether an image layout is what it says: read back as a stranger would, unpacked, and run.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::GzDecoder;
use nix::unistd::geteuid;
use serde_json::Value;

use super::documents::{CONFIG, LAYER};
use super::layout::{INDEX, MANIFEST, digest};
use crate::command::{command, find, repository, stdout};
use crate::release::architecture::Architecture;

/// What the agent in the image is given to plan, and a line of what it must say.
const EXAMPLE: &str = "examples/demo";
const PLANNED: &str = "table ip shunt";

/// Check every digest and every size, and that the agent runs with nothing but what is in the image. A
/// foreign architecture takes an emulator, which is put into the unpacked image.
pub(crate) fn check(layout: &Path, architecture: Option<Architecture>) -> Result<()> {
    let root = tempfile::tempdir().context("cannot make a temporary folder")?;
    unpack(layout, architecture.map(Architecture::name), root.path())?;
    let mut agent = vec!["/usr/bin/shunt"];
    if let Some(emulator) = architecture.and_then(Architecture::emulator) {
        let file = find(emulator).with_context(|| format!("there is no {emulator} here"))?;
        fs::copy(file, root.path().join("tmp/emulator")).context("cannot copy the emulator")?;
        agent.insert(0, "/tmp/emulator");
    }
    let version = stdout(inside(root.path()).args(&agent).arg("--version"))
        .context("the agent does not run in its image")?;
    ensure!(
        version.trim() == concat!("shunt ", env!("CARGO_PKG_VERSION")),
        "the agent in the image says that it is {version}"
    );
    let manifests = root.path().join("tmp/manifests");
    fs::create_dir(&manifests).context("the image has no folder /tmp")?;
    for entry in fs::read_dir(repository().join(EXAMPLE))? {
        let entry = entry?;
        fs::copy(entry.path(), manifests.join(entry.file_name()))?;
    }
    let render = ["render", "--manifests", "/tmp/manifests"];
    let rules = stdout(inside(root.path()).args(&agent).args(render))
        .context("the agent does not work in its image")?;
    ensure!(rules.contains(PLANNED), "the agent in the image plans no rules:\n{rules}");
    Ok(())
}

/// The words that run a program with this folder as its root.
fn inside(root: &Path) -> Command {
    let mut words = match geteuid().is_root() {
        true => command("chroot"),
        false => {
            let mut unshare = command("unshare");
            unshare.args(["--user", "--map-root-user", "chroot"]);
            unshare
        }
    };
    words.arg(root).env_clear().env("PATH", crate::command::search_path());
    words
}

/// Check the layout, and put the files of its layers into a folder, one layer over the other. An index
/// of several architectures needs the name of one.
pub(crate) fn unpack(layout: &Path, architecture: Option<&str>, root: &Path) -> Result<()> {
    let marker = json(&read(&layout.join("oci-layout"))?)?;
    ensure!(marker["imageLayoutVersion"] == "1.0.0", "oci-layout says {marker}");
    let offered = manifests(&json(&read(&layout.join("index.json"))?)?)?;
    let [top] = &offered[..] else { bail!("index.json has {} manifests", offered.len()) };
    let of_index = match top["mediaType"] == INDEX {
        true => manifests(&json(&blob(layout, top, INDEX)?)?)?,
        false => offered.clone(),
    };
    let descriptor = of_index
        .iter()
        .find(|it| architecture.is_none_or(|name| it["platform"]["architecture"] == name))
        .with_context(|| format!("the image has no {architecture:?}"))?;
    let manifest = json(&blob(layout, descriptor, MANIFEST)?)?;
    let config = json(&blob(layout, &manifest["config"], CONFIG)?)?;
    ensure!(config["architecture"] == descriptor["platform"]["architecture"]);
    let layers = manifest["layers"].as_array().context("the manifest has no layers")?;
    let diff_ids = config["rootfs"]["diff_ids"].as_array().context("no diff_ids")?;
    ensure!(layers.len() == diff_ids.len(), "the config has not one diff_id for each layer");
    let blobs = fs::read_dir(layout.join("blobs/sha256"))?.count();
    if of_index.len() == 1 {
        ensure!(blobs == layers.len() + 2, "there are blobs that nothing refers to");
    }
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let mut archive = Vec::new();
        GzDecoder::new(&blob(layout, layer, LAYER)?[..]).read_to_end(&mut archive)?;
        ensure!(*diff_id == digest(&archive), "a layer's diff_id is not that of its archive");
        tar::Archive::new(&archive[..]).unpack(root).context("cannot unpack a layer")?;
    }
    Ok(())
}

fn manifests(index: &Value) -> Result<Vec<Value>> {
    Ok(index["manifests"].as_array().context("an index has no manifests")?.clone())
}

/// The bytes that a descriptor stands for.
fn blob(layout: &Path, descriptor: &Value, media_type: &str) -> Result<Vec<u8>> {
    ensure!(descriptor["mediaType"] == media_type, "not of {media_type}: {descriptor}");
    let expected = descriptor["digest"].as_str().context("a descriptor without a digest")?;
    let (algorithm, hex) = expected.split_once(':').context("a digest without an algorithm")?;
    let bytes = read(&layout.join("blobs").join(algorithm).join(hex))?;
    ensure!(digest(&bytes) == expected, "a blob is not what its digest says: {expected}");
    ensure!(descriptor["size"] == bytes.len(), "the size of {expected} is wrong");
    Ok(bytes)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).context("a document of the image is no JSON")
}
