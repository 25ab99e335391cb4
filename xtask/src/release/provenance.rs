//! The provenance of a release: an in-toto statement with SLSA's predicate, version 1.

use std::env;

use serde_json::{Value, json};

use super::architecture::Architecture;
use super::crates::Crate;
use super::sbom::{crate_purl, debian_purl};
use super::source::{Source, VERSION};
use super::sysroot::DebianPackage;

/// The type of the build: docs/release.md says what its parameters are.
const BUILD: &str = "https://shunt.dev/build/xtask-release/v1";

/// Names who builds, as a URI.
const BUILDER: &str = "SHUNT_BUILDER_ID";

/// What a release was made from.
pub(super) struct Inputs<'a> {
    pub(super) source: &'a Source,
    /// The name of the image.
    pub(super) image: &'a str,
    pub(super) tools: &'a [(String, String)],
    pub(super) crates: Vec<&'a Crate>,
    pub(super) packages: Vec<(Architecture, &'a DebianPackage)>,
}

/// Writes the statement about these files and their digests.
pub(super) fn statement(inputs: &Inputs<'_>, subjects: &[(String, String)]) -> Value {
    let Inputs { source, image, tools, crates, packages } = inputs;
    let mut materials = Vec::new();
    if let Some(revision) = &source.revision {
        materials.push(json!({
            "name": "shunt",
            "uri": format!("pkg:generic/shunt@{VERSION}"),
            "digest": { "gitCommit": revision.trim_end_matches("-dirty") },
        }));
    }
    for it in crates {
        if let Some(sha256) = &it.sha256 {
            materials.push(json!({ "uri": crate_purl(it), "digest": { "sha256": sha256 } }));
        }
    }
    for (architecture, package) in packages {
        materials.push(json!({
            "uri": debian_purl(package, *architecture),
            "digest": { "sha256": package.sha256 },
        }));
    }
    let tools: serde_json::Map<String, Value> =
        tools.iter().map(|(name, version)| (name.clone(), json!(version))).collect();
    let subjects: Vec<Value> = subjects
        .iter()
        .map(|(name, sha256)| json!({ "name": name, "digest": { "sha256": sha256 } }))
        .collect();
    let builder = env::var(BUILDER).ok().filter(|builder| !builder.is_empty());
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": { "version": VERSION, "image": image },
                "internalParameters": {
                    "tools": tools,
                    "sourceDateEpoch": source.time,
                    "commit": source.commit(),
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": builder.as_deref().unwrap_or("https://shunt.dev/build/own-machine"),
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_files_and_materials_with_their_digests() {
        let source = Source { revision: Some("1f2e-dirty".into()), time: 17 };
        let crates = crate::release::crates::of(Architecture::Amd64.target()).unwrap();
        let inputs = Inputs {
            source: &source,
            image: "example.net/shunt:1",
            tools: &[("rustc".into(), "1.95".into())],
            crates: crates.iter().collect(),
            packages: Vec::new(),
        };
        let statement = statement(&inputs, &[("a.tar.gz".into(), "ab".repeat(32))]);
        assert_eq!(statement["subject"][0]["digest"]["sha256"], "ab".repeat(32));
        let build = &statement["predicate"]["buildDefinition"];
        let materials = build["resolvedDependencies"].as_array().unwrap();
        assert_eq!(materials[0]["digest"]["gitCommit"], "1f2e");
        // Our three crates have no archive.
        assert_eq!(materials.len(), 1 + crates.len() - 3);
        assert_eq!(build["internalParameters"]["tools"]["rustc"], "1.95");
    }
}
