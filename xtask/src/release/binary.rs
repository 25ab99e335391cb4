//! What a released binary has in it: the list of crates of cargo-auditable, and nothing of the host.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use elf::ElfBytes;
use elf::endian::AnyEndian;
use flate2::read::ZlibDecoder;
use serde_json::Value;

use super::crates::{Crate, Kind};

const SECTION: &str = ".dep-v0";

/// The section of a program that needs a loader, and with it shared libraries.
const LOADER: &str = ".interp";

/// The function of nss.c that keeps libc from loading modules.
const ONLY_OWN_MODULES: &str = "use_built_in_modules";

/// Fails unless the binary needs no other file, and lists the crates that are linked into it. Returns
/// how many it lists: cargo-auditable also lists crates of features that are off.
pub(super) fn check(binary: &Path, crates: &[Crate]) -> Result<usize> {
    let bytes = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    check_libc(&bytes).with_context(|| format!("{} is not closed", binary.display()))?;
    let listed = linked(&list(&bytes)?)?;
    let missing = missing(&listed, crates);
    ensure!(
        missing.is_empty(),
        "the section {SECTION} of {} lacks crates that are linked: {missing:?}",
        binary.display()
    );
    Ok(listed.len())
}

/// The linked crates that a list lacks.
fn missing(listed: &[(String, String)], crates: &[Crate]) -> Vec<(String, String)> {
    crates
        .iter()
        .filter(|it| it.kind == Kind::Linked)
        .map(|it| (it.name.clone(), it.version.clone()))
        .filter(|it| !listed.contains(it))
        .collect()
}

/// Fails if the binary needs shared libraries, or may load modules of the host.
fn check_libc(binary: &[u8]) -> Result<()> {
    let file = ElfBytes::<AnyEndian>::minimal_parse(binary).context("the binary is no ELF file")?;
    let loader = file.section_header_by_name(LOADER).context("cannot read the sections")?;
    ensure!(loader.is_none(), "it is not statically linked");
    let table = file.symbol_table().context("cannot read the symbols")?;
    let (symbols, names) = table.context("it has no symbols")?;
    let limited = symbols.iter().any(|symbol| {
        names.get(symbol.st_name as usize).is_ok_and(|name| name == ONLY_OWN_MODULES)
    });
    ensure!(limited, "{ONLY_OWN_MODULES} of nss.c is not linked into it");
    Ok(())
}

/// The list in a binary.
fn list(binary: &[u8]) -> Result<Value> {
    let file = ElfBytes::<AnyEndian>::minimal_parse(binary).context("the binary is no ELF file")?;
    let header = file.section_header_by_name(SECTION).context("cannot read the sections")?;
    let Some(header) = header else { bail!("the binary has no section {SECTION}") };
    let (content, _) = file.section_data(&header).context("cannot read the section")?;
    let mut text = String::new();
    ZlibDecoder::new(content).read_to_string(&mut text).context("cannot decompress the section")?;
    serde_json::from_str(&text).context("the section is no JSON")
}

/// Names and versions of the crates in a list whose code is in the binary.
fn linked(list: &Value) -> Result<Vec<(String, String)>> {
    let packages = list["packages"].as_array().context("the section lists no packages")?;
    let mut linked: Vec<_> = packages
        .iter()
        .filter(|package| package["kind"] != "build")
        .filter_map(|package| {
            let field = |name: &str| Some(package[name].as_str()?.to_owned());
            Some((field("name")?, field("version")?))
        })
        .collect();
    linked.sort();
    Ok(linked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_is_read_without_what_only_builds() {
        let list = json!({ "packages": [
            { "name": "b", "version": "2.0.0", "source": "crates.io" },
            { "name": "cc", "version": "1.0.0", "source": "crates.io", "kind": "build" },
            { "name": "a", "version": "1.0.0", "source": "local", "root": true },
        ]});
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(linked(&list).unwrap(), [pair("a", "1.0.0"), pair("b", "2.0.0")]);
        assert!(linked(&json!({})).is_err());
        let all = crate::release::crates::of("x86_64-unknown-linux-gnu").unwrap();
        let lacking = missing(&[], &all);
        let names: Vec<&str> = lacking.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"nftnl-sys") && !names.contains(&"serde_derive"), "{names:?}");
        assert_eq!(missing(&lacking, &all), []);
    }

    #[test]
    fn a_binary_without_a_list_is_reported() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(list(&this).unwrap_err().to_string().contains(".dep-v0"));
        assert!(list(b"#!/bin/sh").is_err());
        assert_eq!(check_libc(&this).unwrap_err().to_string(), "it is not statically linked");
    }
}
