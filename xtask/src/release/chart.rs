//! The chart as Helm publishes it: a package (`.tgz`), and the same as an OCI artifact.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::source::{Source, VERSION};
use crate::image::layer::{archive, compress};
use crate::image::layout::{Layout, MANIFEST};
use crate::tree::{Item, Tree};

/// Where the chart is.
pub(super) const CHART: &str = "deploy/chart";

const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// The lines of values.yaml that name the image.
const REPOSITORY: &str = "  repository: localhost/shunt\n";
const DIGEST: &str = "  digest: \"\"\n";

/// The fields of Chart.yaml, as JSON.
pub(super) fn metadata(text: &str) -> Result<Value> {
    let chart: Value = serde_saphyr::from_str(text).context("cannot read Chart.yaml")?;
    for field in ["version", "appVersion"] {
        ensure!(
            chart[field] == VERSION,
            "{field} in {CHART}/Chart.yaml is {}; set it to {VERSION}, the version in Cargo.toml",
            chart[field]
        );
    }
    Ok(chart)
}

/// Makes the package from the source. Its values name the image in `repository` by its digest, if
/// there is one.
pub(super) fn package(source: &Tree, time: u64, image: Option<(&str, &str)>) -> Result<Vec<u8>> {
    let mut tree = Tree::default();
    for (path, item) in source.items() {
        let Some(name) = path.strip_prefix(CHART).and_then(|path| path.strip_prefix('/')) else {
            continue;
        };
        let Item::File { content, .. } = item else { continue };
        // What helm itself leaves out of a package.
        if name == ".helmignore" {
            continue;
        }
        let content = match (name, image) {
            ("values.yaml", Some((repository, digest))) => {
                pinned(std::str::from_utf8(content)?, repository, digest)?.into_bytes()
            }
            _ => content.clone(),
        };
        tree.file(&format!("shunt/{name}"), content)?;
    }
    // An archive of files alone, as helm writes it.
    compress(&archive(&tree.without_folders(), time)?)
}

/// The values with the image that was released.
fn pinned(values: &str, repository: &str, digest: &str) -> Result<String> {
    for line in [REPOSITORY, DIGEST] {
        ensure!(
            values.matches(line).count() == 1,
            "{CHART}/values.yaml has not exactly one line {line:?}, which a release replaces"
        );
    }
    Ok(values
        .replace(REPOSITORY, &format!("  repository: {repository}\n"))
        .replace(DIGEST, &format!("  digest: {digest}\n")))
}

/// Makes the artifact that a registry takes, and its digest.
pub(super) fn artifact(
    metadata: &Value,
    package: Vec<u8>,
    source: &Source,
) -> Result<(Layout, String)> {
    let mut layout = Layout::default();
    let config = layout.put_json(CONFIG, metadata);
    let content = layout.put(CONTENT, package);
    let mut manifest = layout.put_json(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [content],
            "annotations": {
                "org.opencontainers.image.created": source.rfc3339()?,
                "org.opencontainers.image.description": metadata["description"],
                "org.opencontainers.image.title": metadata["name"],
                "org.opencontainers.image.version": metadata["version"],
            },
        }),
    );
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": VERSION });
    layout.offer(manifest);
    Ok((layout, digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use crate::digest::sha256;
    use crate::release::source;

    fn unpacked(package: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(GzDecoder::new(package));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            assert!(entry.header().entry_type().is_file());
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().display().to_string(), text)
        });
        entries.collect()
    }

    #[test]
    fn the_package_has_the_chart_and_names_the_image() {
        let source = source::files().unwrap();
        let plain = unpacked(&package(&source, 17, None).unwrap());
        let digest = format!("sha256:{}", "ab".repeat(32));
        let pinned = package(&source, 17, Some(("example.net/shunt", &digest))).unwrap();
        let pinned = unpacked(&pinned);
        assert!(pinned.keys().eq(plain.keys()));
        assert!(plain.contains_key("shunt/templates/daemonset.yaml"), "{:?}", plain.keys());
        let differ: Vec<_> = plain.keys().filter(|name| plain[*name] != pinned[*name]).collect();
        assert_eq!(differ, ["shunt/values.yaml"]);
        let values: Value = serde_saphyr::from_str(&pinned["shunt/values.yaml"]).unwrap();
        assert_eq!(values["image"]["repository"], "example.net/shunt");
        assert_eq!(values["image"]["digest"], digest.as_str());
    }

    #[test]
    fn the_artifact_has_helms_media_types_and_the_package() {
        let source = source::files().unwrap();
        let package = package(&source, 17, None).unwrap();
        let chart = unpacked(&package);
        let metadata = metadata(&chart["shunt/Chart.yaml"]).unwrap();
        let commit = Source { revision: None, time: 17 };
        let (layout, digest) = artifact(&metadata, package.clone(), &commit).unwrap();
        let files: BTreeMap<String, Vec<u8>> = layout
            .files()
            .unwrap()
            .items()
            .filter_map(|(path, item)| match item {
                Item::File { content, .. } => Some((path.to_owned(), content.clone())),
                _ => None,
            })
            .collect();
        let json = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        assert_eq!(json("index.json")["manifests"][0]["digest"], digest.as_str());
        let manifest = json(&format!("blobs/{}", digest.replace(':', "/")));
        assert_eq!(manifest["config"]["mediaType"], CONFIG);
        assert_eq!(manifest["layers"][0]["mediaType"], CONTENT);
        assert_eq!(manifest["layers"][0]["digest"], format!("sha256:{}", sha256(&package)));
        let config = manifest["config"]["digest"].as_str().unwrap().replace(':', "/");
        assert_eq!(json(&format!("blobs/{config}"))["appVersion"], VERSION);
    }

    #[test]
    fn another_version_in_the_chart_is_an_error() {
        let text = format!("name: shunt\nversion: {VERSION}\nappVersion: 9.9.9\n");
        let error = metadata(&text).unwrap_err().to_string();
        assert!(error.starts_with("appVersion in"), "{error}");
    }
}
