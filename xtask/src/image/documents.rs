//! The documents of an image (OCI image-spec 1.1: `config.md`, `manifest.md`, `image-index.md`).

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::layer::{archive, compress};
use super::layout::{INDEX, Layout, MANIFEST, digest};
use crate::release::source::{Source, VERSION};
use crate::tree::Tree;

pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// A layer that is ready to be written.
struct Layer {
    title: &'static str,
    compressed: Vec<u8>,
    /// The digest of the archive inside.
    diff_id: String,
}

/// What an image has for one architecture.
pub(crate) struct Platform {
    /// The name of the architecture.
    pub(crate) architecture: &'static str,
    /// The files of each layer, and what they are.
    pub(crate) layers: Vec<(&'static str, Tree)>,
}

/// An image: of one architecture, or an index of one image for each.
pub(crate) struct Image {
    pub(crate) layout: Layout,
    digest: String,
}

impl Image {
    /// `name` is the image's full name, with a tag.
    pub(crate) fn new(name: &str, source: &Source, platforms: &[Platform]) -> Result<Self> {
        let (_, tag) = split(name)?;
        let labels = labels(source)?;
        let mut layout = Layout::default();
        let mut manifests = Vec::new();
        for platform in platforms {
            manifests.push(manifest(&mut layout, platform, source, &labels)?);
        }
        let mut top = match &manifests[..] {
            [one] => one.clone(),
            _ => layout.put_json(
                INDEX,
                &json!({
                    "schemaVersion": 2,
                    "mediaType": INDEX,
                    "manifests": manifests,
                    "annotations": labels,
                }),
            ),
        };
        let digest = top["digest"].as_str().unwrap_or_default().to_owned();
        top["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag,
            // By which containerd names what it imports.
            "io.containerd.image.name": name,
        });
        layout.offer(top);
        Ok(Self { layout, digest })
    }

    /// The digest of the manifest or index: what `image@` takes.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }
}

/// The repository and the tag of an image's name.
pub(crate) fn split(name: &str) -> Result<(&str, &str)> {
    name.rsplit_once(':')
        .filter(|(_, tag)| !tag.contains('/'))
        .with_context(|| format!("{name} has no tag; write {name}:TAG"))
}

fn labels(source: &Source) -> Result<Value> {
    Ok(json!({
        "org.opencontainers.image.created": source.rfc3339()?,
        "org.opencontainers.image.description": "A netlink-native Service dataplane for Kubernetes nodes",
        "org.opencontainers.image.licenses": "GPL-3.0-or-later",
        "org.opencontainers.image.revision": source.commit(),
        "org.opencontainers.image.title": "shunt",
        "org.opencontainers.image.version": VERSION,
    }))
}

/// The descriptor of the image for one architecture.
fn manifest(
    layout: &mut Layout,
    platform: &Platform,
    source: &Source,
    labels: &Value,
) -> Result<Value> {
    let layers = platform.layers.iter().map(|(title, tree)| {
        let archive = archive(tree, source.time)?;
        Ok(Layer { title, compressed: compress(&archive)?, diff_id: digest(&archive) })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let created = source.rfc3339()?;
    let history = |layer: &Layer| json!({ "created": created, "created_by": layer.title });
    let config = json!({
        "architecture": platform.architecture,
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
    let config = layout.put_json(CONFIG, &config);
    let layers: Vec<Value> =
        layers.into_iter().map(|layer| layout.put(LAYER, layer.compressed)).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers,
        "annotations": labels,
    });
    let mut manifest = layout.put_json(MANIFEST, &manifest);
    manifest["platform"] = json!({ "architecture": platform.architecture, "os": "linux" });
    Ok(manifest)
}
