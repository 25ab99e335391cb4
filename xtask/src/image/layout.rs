//! The folder that images and other artifacts lie in (OCI image-spec 1.1: `image-layout.md`).

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::digest::sha256;
use crate::tree::Tree;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Blobs by their digests, and what the layout offers.
#[derive(Default)]
pub(crate) struct Layout {
    blobs: BTreeMap<String, Vec<u8>>,
    offered: Vec<Value>,
}

impl Layout {
    /// Takes a blob in; its descriptor.
    pub(crate) fn put(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        self.blobs.insert(digest, bytes);
        descriptor
    }

    /// Takes a document in; its descriptor.
    pub(crate) fn put_json(&mut self, media_type: &str, document: &Value) -> Value {
        self.put(media_type, text(document))
    }

    /// Lists a manifest or an index in `index.json`.
    pub(crate) fn offer(&mut self, descriptor: Value) {
        self.offered.push(descriptor);
    }

    /// In bytes.
    pub(crate) fn size(&self) -> usize {
        self.blobs.values().map(Vec::len).sum()
    }

    /// Returns the files of the layout.
    pub(crate) fn files(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        for (digest, bytes) in &self.blobs {
            tree.file(&format!("blobs/{}", digest.replacen(':', "/", 1)), bytes.clone())?;
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": self.offered });
        tree.file("index.json", text(&index))?;
        tree.file("oci-layout", text(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        Ok(tree)
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

fn text(value: &Value) -> Vec<u8> {
    // Maps are sorted, so the same value is the same text.
    value.to_string().into_bytes()
}
