//! The documents of an image, and the folder that they lie in (OCI image-spec 1.1: `config.md`,
//! `manifest.md`, `image-layout.md`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::Commit;
use super::layer::{archive, compress};
use crate::digest::sha256;
use crate::tree::Tree;

pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layer that is ready to be written.
pub(super) struct Layer {
    title: &'static str,
    compressed: Vec<u8>,
    /// The digest of the archive inside.
    diff_id: String,
}

impl Layer {
    pub(super) fn new(title: &'static str, tree: &Tree) -> Result<Self> {
        let archive = archive(tree)?;
        Ok(Self { title, compressed: compress(&archive)?, diff_id: digest(&archive) })
    }
}

/// An image for one architecture.
pub(super) struct Image {
    /// By their digests.
    blobs: BTreeMap<String, Vec<u8>>,
    index: Value,
    digest: String,
}

impl Image {
    /// `name` is the image's full name, with a tag.
    pub(super) fn new(name: &str, commit: &Commit, layers: Vec<Layer>) -> Result<Self> {
        let (_, tag) = name
            .rsplit_once(':')
            .filter(|(_, tag)| !tag.contains('/'))
            .with_context(|| format!("{name} has no tag; write {name}:TAG"))?;
        let created = &commit.time;
        let labels = json!({
            "org.opencontainers.image.created": created,
            "org.opencontainers.image.description": "A netlink-native Service dataplane for Kubernetes nodes",
            "org.opencontainers.image.licenses": "GPL-3.0-or-later",
            "org.opencontainers.image.revision": commit.revision,
            "org.opencontainers.image.title": "shunt",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        });
        let history = |layer: &Layer| json!({ "created": created, "created_by": layer.title });
        let config = json!({
            "architecture": architecture()?,
            "os": "linux",
            "created": created,
            "config": {
                // No user: it is root, to whom alone Kubernetes gives capabilities.
                "Entrypoint": ["/usr/bin/shunt"],
                "Cmd": ["run"],
                "Env": ["PATH=/usr/bin"],
                "WorkingDir": "/",
                "Labels": labels,
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|layer| layer.diff_id.clone()).collect::<Vec<_>>(),
            },
            "history": layers.iter().map(history).collect::<Vec<_>>(),
        });
        let mut blobs = BTreeMap::new();
        let config = put(&mut blobs, CONFIG, text(&config));
        let layers: Vec<Value> =
            layers.into_iter().map(|layer| put(&mut blobs, LAYER, layer.compressed)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": labels,
        });
        let mut manifest = put(&mut blobs, MANIFEST, text(&manifest));
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        manifest["platform"] = json!({ "architecture": architecture()?, "os": "linux" });
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag,
            // By which containerd names what it imports.
            "io.containerd.image.name": name,
        });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
        Ok(Self { blobs, index, digest })
    }

    /// The digest of the manifest: what `image@` takes.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// In bytes.
    pub(super) fn size(&self) -> usize {
        self.blobs.values().map(Vec::len).sum()
    }

    /// Write the image into a folder that does not exist yet.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("cannot make {}", blobs.display()))?;
        let write = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        for (digest, bytes) in &self.blobs {
            write(&blobs.join(digest.trim_start_matches("sha256:")), bytes)?;
        }
        write(&folder.join("index.json"), &text(&self.index))?;
        write(&folder.join("oci-layout"), &text(&json!({ "imageLayoutVersion": "1.0.0" })))
    }
}

/// Takes a blob in; its descriptor.
fn put(blobs: &mut BTreeMap<String, Vec<u8>>, media_type: &str, bytes: Vec<u8>) -> Value {
    let digest = digest(&bytes);
    let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
    blobs.insert(digest, bytes);
    descriptor
}

pub(super) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

fn text(value: &Value) -> Vec<u8> {
    // Maps are sorted, so the same value is the same text.
    value.to_string().into_bytes()
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
