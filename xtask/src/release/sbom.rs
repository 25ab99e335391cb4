//! The bill of materials of a binary: SPDX 2.3, as JSON.

use anyhow::Result;
use serde_json::{Value, json};

use super::architecture::Architecture;
use super::crates::{Crate, Kind};
use super::source::{Source, VERSION};
use super::sysroot::{DebianPackage, RELEASE};

/// What a binary is made of.
pub(crate) struct Materials<'a> {
    pub(crate) architecture: Architecture,
    pub(crate) source: &'a Source,
    pub(crate) crates: &'a [Crate],
    /// Debian's packages whose code is in the binary.
    pub(crate) packages: &'a [DebianPackage],
    /// Names and versions of the compilers.
    pub(crate) tools: &'a [(String, String)],
    /// The digest of the binary.
    pub(crate) sha256: &'a str,
}

/// Writes the bill of materials.
pub(crate) fn document(materials: &Materials<'_>) -> Result<Value> {
    let Materials { architecture, source, crates, packages, tools, sha256 } = materials;
    let mut listed = vec![agent(source, sha256)];
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", AGENT)];
    for it in crates.iter().filter(|it| it.name != "shunt") {
        let id = id(&["crate", &it.name, &it.version]);
        relations.push(match it.kind {
            Kind::Linked => relation(AGENT, "STATIC_LINK", &id),
            Kind::Build => relation(&id, "BUILD_DEPENDENCY_OF", AGENT),
        });
        listed.push(of_crate(it, &id));
    }
    for package in packages.iter().filter(|package| package.linked) {
        let id = id(&["deb", &package.name]);
        relations.push(relation(AGENT, "STATIC_LINK", &id));
        listed.push(of_debian(package, &id, *architecture));
    }
    for (name, version) in tools.iter() {
        let id = id(&["tool", name]);
        // The standard library of Rust, and libgcc, are parts of the compilers.
        let kind = if name == "cargo-auditable" { "BUILD_TOOL_OF" } else { "STATIC_LINK" };
        relations.push(match kind {
            "STATIC_LINK" => relation(AGENT, kind, &id),
            _ => relation(&id, kind, AGENT),
        });
        listed.push(of_tool(name, version, &id));
    }
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("shunt-{VERSION}-linux-{}", architecture.name()),
        "documentNamespace": format!("https://shunt.dev/spdx/shunt-{VERSION}-linux-{}-{sha256}", architecture.name()),
        "creationInfo": {
            "created": source.rfc3339()?,
            "creators": [format!("Tool: shunt-xtask-release-{VERSION}")],
        },
        "packages": listed,
        "relationships": relations,
    }))
}

const AGENT: &str = "SPDXRef-shunt";

fn agent(source: &Source, sha256: &str) -> Value {
    json!({
        "SPDXID": AGENT,
        "name": "shunt",
        "versionInfo": VERSION,
        "sourceInfo": format!("commit {}", source.commit()),
        "primaryPackagePurpose": "APPLICATION",
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "checksums": [{ "algorithm": "SHA256", "checksumValue": sha256 }],
        "licenseConcluded": "GPL-3.0-or-later",
        "licenseDeclared": "Apache-2.0 OR GPL-2.0-or-later",
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&format!("pkg:cargo/shunt@{VERSION}"))],
    })
}

fn of_crate(it: &Crate, id: &str) -> Value {
    let mut package = json!({
        "SPDXID": id,
        "name": it.name,
        "versionInfo": it.version,
        "primaryPackagePurpose": "LIBRARY",
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": it.licence.as_deref().unwrap_or("NOASSERTION"),
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&crate_purl(it))],
    });
    if let Some(sha256) = &it.sha256 {
        package["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": sha256 }]);
    }
    package
}

fn of_debian(package: &DebianPackage, id: &str, architecture: Architecture) -> Value {
    let (source, version) = &package.source;
    json!({
        "SPDXID": id,
        "name": package.name,
        "versionInfo": package.version,
        "sourceInfo": format!("built from: {source} {version}"),
        "primaryPackagePurpose": "LIBRARY",
        "supplier": "Organization: Debian",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "checksums": [{ "algorithm": "SHA256", "checksumValue": package.sha256 }],
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "licenseComments": format!("the text is in usr/share/doc/{}/copyright of the image", package.name),
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&debian_purl(package, architecture))],
    })
}

fn of_tool(name: &str, version: &str, id: &str) -> Value {
    json!({
        "SPDXID": id,
        "name": name,
        "versionInfo": version,
        "comment": match name {
            "rustc" => "compiled the agent; its standard library is in the binary",
            "cargo-auditable" => "put the list of crates into the binary",
            _ => "compiled C code of crates, and linked; its libgcc is in the binary",
        },
        "primaryPackagePurpose": "APPLICATION",
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    })
}

/// The package URL of a crate.
pub(super) fn crate_purl(it: &Crate) -> String {
    format!("pkg:cargo/{}@{}", it.name, it.version.replace('+', "%2B"))
}

/// The package URL of a package of Debian.
pub(super) fn debian_purl(package: &DebianPackage, architecture: Architecture) -> String {
    let version = package.version.replace('+', "%2B").replace(':', "%3A");
    let (name, architecture) = (&package.name, architecture.name());
    format!("pkg:deb/debian/{name}@{version}?arch={architecture}&distro=debian-{}", RELEASE.1)
}

fn purl(locator: &str) -> Value {
    json!({
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": locator,
    })
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to })
}

/// An identifier, which has letters, digits, `.` and `-`.
fn id(parts: &[&str]) -> String {
    let text = parts.join("-");
    let legal = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '.' };
    format!("SPDXRef-{}", text.chars().map(legal).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_relation_is_of_packages_that_are_listed_once() {
        let architecture = Architecture::Arm64;
        let crates = crate::release::crates::of(architecture.target()).unwrap();
        let package = DebianPackage {
            name: "libnftnl-dev".into(),
            version: "1:1.2.9-1+b1".into(),
            source: ("libnftnl".into(), "1.2.9-1".into()),
            sha256: "ab".repeat(32),
            control: String::new(),
            linked: true,
        };
        let headers = DebianPackage { name: "headers".into(), linked: false, ..package.clone() };
        let tools = [("rustc".to_owned(), "rustc 1".to_owned())];
        let document = document(&Materials {
            architecture,
            source: &Source { revision: None, time: 0 },
            crates: &crates,
            packages: &[package, headers],
            tools: &tools,
            sha256: "00",
        })
        .unwrap();
        let packages = document["packages"].as_array().unwrap();
        let ids: BTreeSet<&str> =
            packages.iter().map(|package| package["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), packages.len());
        assert_eq!(packages.len(), crates.len() + 2, "the agent, libnftnl and rustc, no headers");
        for relation in document["relationships"].as_array().unwrap() {
            for end in ["spdxElementId", "relatedSpdxElement"] {
                let id = relation[end].as_str().unwrap();
                assert!(id == "SPDXRef-DOCUMENT" || ids.contains(id), "{id}");
            }
        }
        let text = document.to_string();
        assert!(text.contains("pkg:deb/debian/libnftnl-dev@1%3A1.2.9-1%2Bb1?arch=arm64"), "{text}");
    }
}
