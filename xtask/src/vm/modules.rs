//! The modules of a kernel: which ones a machine needs, and the index by which they are found there.
//!
//! Everything is read from the modules themselves, section `.modinfo`: name, aliases, and what must be
//! loaded first. So no `depmod` is needed, and no index of a package is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use elf::ElfBytes;
use elf::endian::AnyEndian;

use crate::command::{command, describe, output};
use crate::tree::Tree;

/// What is taken: all packet filtering, lists of sockets, and the devices of the testbed. Folders end with a slash.
const WANTED: [&str; 9] = [
    "net/netfilter/",
    "net/netfilter/ipvs/",
    "net/ipv4/netfilter/",
    "net/ipv6/netfilter/",
    "net/bridge/",
    "net/ipv4/tcp_diag",
    "net/ipv4/udp_diag",
    "drivers/net/veth",
    "drivers/net/dummy",
];

/// Where modules lie in the machine, and the index of them; read by `vm-tests/src/modprobe.rs`.
const FOLDER: &str = "lib/modules";

/// What a signed module ends with: `MODULE_SIG_STRING`.
const SIGNATURE_MARKER: &[u8] = b"~Module signature appended~\n";

/// A module as its package has it.
struct Module {
    /// The file as it is in the package, perhaps compressed.
    file: PathBuf,
    /// Without suffixes.
    stem: String,
    /// Relative to the folder `kernel`.
    path: String,
}

/// What a module says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Information {
    aliases: Vec<String>,
    depends: Vec<String>,
    /// Wanted before or after it, but not needed.
    soft: Vec<String>,
}

/// Put the modules that a machine needs into `tree`, out of `folder`, which is the `kernel` folder
/// of a kernel's modules; the number of them.
pub(super) fn install(folder: &Path, tree: &mut Tree) -> Result<usize> {
    let modules = collect(folder)?;
    let by_name: BTreeMap<String, &Module> =
        modules.iter().map(|module| (module.stem.replace('-', "_"), module)).collect();
    let is_wanted = |module: &&Module| WANTED.iter().any(|wanted| takes(wanted, &module.path));
    let mut waiting: Vec<&Module> = modules.iter().filter(is_wanted).collect();
    ensure!(!waiting.is_empty(), "{} has no modules of packet filtering", folder.display());

    let mut index = String::new();
    let mut taken = BTreeSet::new();
    while let Some(module) = waiting.pop() {
        let name = module.stem.replace('-', "_");
        if !taken.insert(name.clone()) {
            continue;
        }
        let content = read(&module.file)?;
        let information = modinfo(&content)
            .and_then(parse)
            .with_context(|| format!("cannot read the module {}", module.file.display()))?;
        let path = format!("{FOLDER}/{}.ko", module.stem);
        // What is built in has no file, and needs none.
        let mut depends: Vec<&str> = Vec::new();
        for dependency in &information.depends {
            let dependency = dependency.replace('-', "_");
            let (known, module) = by_name
                .get_key_value(&dependency)
                .with_context(|| format!("{name} needs {dependency}, which is not there"))?;
            depends.push(known);
            waiting.push(module);
        }
        waiting.extend(information.soft.iter().filter_map(|it| by_name.get(&it.replace('-', "_"))));
        index += &format!("module {name} /{path}");
        depends.iter().for_each(|dependency| index += &format!(" {dependency}"));
        index.push('\n');
        for alias in information.aliases.iter().filter(|alias| !alias.contains(' ')) {
            index += &format!("alias {alias} {name}\n");
        }
        tree.file(&in_usr(&path), unsigned(content))?;
    }
    tree.file(&in_usr(&format!("{FOLDER}/index")), index)?;
    Ok(taken.len())
}

/// On all current distributions `/lib` is a link.
fn in_usr(path: &str) -> String {
    format!("usr/{path}")
}

/// Whether this pattern of [`WANTED`] means the module at `path`. A folder does not mean those in it.
fn takes(wanted: &str, path: &str) -> bool {
    match path.strip_prefix(wanted) {
        Some(rest) if wanted.ends_with('/') => !rest.contains('/'),
        Some(rest) => rest.starts_with(".ko"),
        None => false,
    }
}

fn collect(folder: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        let unreadable = || format!("cannot list {}", current.display());
        for entry in fs::read_dir(&current).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            if entry.file_type().with_context(unreadable)?.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let file = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some((stem, _)) = name.split_once(".ko") {
                let path = file.strip_prefix(folder)?.display().to_string();
                modules.push(Module { stem: stem.to_owned(), path, file });
            }
        }
    }
    modules.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(modules)
}

/// The module's bytes, decompressed.
fn read(file: &Path) -> Result<Vec<u8>> {
    let program = match file.extension().and_then(OsStr::to_str) {
        Some("ko") => {
            return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        }
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{} is compressed in a way that is not known here", file.display()),
    };
    let mut decompress = command(program);
    decompress.args(["-d", "-c"]).arg(file);
    let decompressed = output(&mut decompress)?;
    if !decompressed.status.success() {
        let said = String::from_utf8_lossy(&decompressed.stderr);
        bail!("`{}` failed: {}", describe(&decompress), said.trim());
    }
    Ok(decompressed.stdout)
}

/// The module without the signature behind it. Distributions' kernels load such modules, too, and to
/// verify all signatures of a boot takes an emulated processor ten seconds. Whether a package is
/// Debian's, apt has seen to.
///
/// The layout is that of `struct module_signature`, include/linux/module_signature.h: the signature,
/// eight bytes about it, its length with the higher byte first, and the marker.
fn unsigned(mut module: Vec<u8>) -> Vec<u8> {
    let length = || {
        let rest = module.strip_suffix(SIGNATURE_MARKER)?;
        let (rest, length) = rest.split_last_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        rest.len().checked_sub(length.checked_add(8)?)
    };
    if let Some(length) = length() {
        module.truncate(length);
    }
    module
}

/// The section `.modinfo` of a module.
fn modinfo(module: &[u8]) -> Result<&[u8]> {
    let elf = ElfBytes::<AnyEndian>::minimal_parse(module)?;
    let section = elf.section_header_by_name(".modinfo")?.context("it has no section .modinfo")?;
    Ok(elf.section_data(&section)?.0)
}

/// The strings `key=value` of a `.modinfo`.
fn parse(modinfo: &[u8]) -> Result<Information> {
    let mut information = Information::default();
    for entry in modinfo.split(|byte| *byte == 0) {
        let entry = String::from_utf8_lossy(entry);
        match entry.split_once('=') {
            Some(("alias", alias)) => information.aliases.push(alias.to_owned()),
            Some(("depends", names)) => {
                let names = names.split(',').filter(|name| !name.is_empty());
                information.depends.extend(names.map(str::to_owned));
            }
            Some(("softdep", names)) => {
                let names = names.split(' ').filter(|name| !name.ends_with(':'));
                information.soft.extend(names.map(str::to_owned));
            }
            _ => {}
        }
    }
    Ok(information)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with the sections that matter: none, `.modinfo`, and the names.
    fn module(modinfo: &[u8]) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut elf = vec![0; 0x40];
        elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        elf[0x14] = 1;
        let (info_at, names_at) = (elf.len(), elf.len() + modinfo.len());
        elf.extend(modinfo);
        elf.extend(names);
        let sections = elf.len() as u64;
        elf[0x28..0x30].copy_from_slice(&sections.to_le_bytes());
        for (at, value) in [(0x3a, 0x40_u16), (0x3c, 3), (0x3e, 2)] {
            elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        // Of the types 0 (none), 1 (data) and 3 (names).
        for (name, kind, start, length) in
            [(0_u32, 0, 0, 0), (1, 1, info_at, modinfo.len()), (10, 3, names_at, names.len())]
        {
            let mut header = vec![0; 0x40];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4] = kind;
            header[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            elf.extend(header);
        }
        elf
    }

    #[test]
    fn dependencies_come_along_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, information: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, module(information)).unwrap();
        };
        write(
            "net/netfilter/nf_tables.ko",
            b"depends=nfnetlink,lib-x\0alias=nfnetlink-subsys-10\0",
        );
        write("net/netfilter/nfnetlink.ko", b"depends=\0softdep=pre: soft gone\0");
        write("lib/lib-x.ko", b"depends=\0");
        write("lib/soft.ko", b"depends=\0");
        write("lib/other.ko", b"depends=\0");
        let mut tree = Tree::default();
        assert_eq!(install(folder.path(), &mut tree).unwrap(), 4);
        let paths: Vec<&str> = tree.items().map(|(path, _)| path).collect();
        assert!(paths.contains(&"usr/lib/modules/lib-x.ko"), "{paths:?}");
        let index = tree.items().find_map(|(path, item)| match item {
            crate::tree::Item::File { content, .. } if path.ends_with("index") => Some(content),
            _ => None,
        });
        let index = String::from_utf8_lossy(index.unwrap()).into_owned();
        let line = "module nf_tables /lib/modules/nf_tables.ko nfnetlink lib_x\n";
        assert!(index.contains(line), "{index}");
        assert!(index.contains("alias nfnetlink-subsys-10 nf_tables\n"), "{index}");
    }

    #[test]
    fn a_dependency_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("net/netfilter")).unwrap();
        fs::write(folder.path().join("net/netfilter/a.ko"), module(b"depends=b\0")).unwrap();
        let error = install(folder.path(), &mut Tree::default()).unwrap_err();
        assert!(error.to_string().contains("a needs b"), "{error}");
    }

    #[test]
    fn signatures_are_left_out() {
        let plain = module(b"depends=b\0");
        assert_eq!(unsigned(plain.clone()), plain);
        let mut signed = plain.clone();
        signed.extend(b"a signature\0\0\x02\0\0\0\0\0\0\0\0\x0b");
        signed.extend(SIGNATURE_MARKER);
        assert_eq!(unsigned(signed), plain);
        // A length that cannot be is none.
        let short = [b"\0\0\x01\0".as_slice(), SIGNATURE_MARKER].concat();
        assert_eq!(unsigned(short.clone()), short);
    }

    #[test]
    fn what_is_cut_off_is_no_module() {
        let whole = module(b"depends=b\0");
        for length in 0..whole.len() {
            assert!(modinfo(&whole[..length]).is_err(), "{length}");
        }
    }
}
