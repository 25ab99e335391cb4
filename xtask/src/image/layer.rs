//! A folder of files as a layer: sorted, with fixed times and owners, so that it is the same wherever
//! and whenever it is made.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// When all files were changed, in seconds since 1970: the start of 2020. Some programs complain about
/// 0.
const CHANGED: u64 = 1_577_836_800;

/// Files by their paths, which are relative to the root, without `./`.
#[derive(Default)]
pub(super) struct Tree {
    items: BTreeMap<String, Item>,
}

enum Item {
    Folder,
    File { content: Vec<u8>, mode: u32 },
    Link { target: String },
}

impl Tree {
    /// A file that can be read by all.
    pub(super) fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) -> Result<()> {
        self.add(path, Item::File { content: content.into(), mode: 0o644 })
    }

    /// A file that can be run by all.
    pub(super) fn program(&mut self, path: &str, content: Vec<u8>) -> Result<()> {
        self.add(path, Item::File { content, mode: 0o755 })
    }

    /// A symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.add(path, Item::Link { target: target.to_owned() })
    }

    /// An empty folder.
    pub(super) fn folder(&mut self, path: &str) -> Result<()> {
        self.add(path, Item::Folder)
    }

    fn add(&mut self, path: &str, item: Item) -> Result<()> {
        let path = path.trim_start_matches('/');
        ensure!(!path.is_empty() && !path.split('/').any(|part| part == ".."), "no path: {path}");
        for (end, _) in path.match_indices('/') {
            let folder = self.items.entry(path[..end].to_owned()).or_insert(Item::Folder);
            ensure!(matches!(folder, Item::Folder), "{} is no folder", &path[..end]);
        }
        let old = self.items.insert(path.to_owned(), item);
        ensure!(matches!(old, None | Some(Item::Folder)), "{path} is there twice");
        Ok(())
    }

    /// The files as a tar archive.
    pub(super) fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, item) in &self.items {
            let mut header = Header::new_gnu();
            header.set_mtime(CHANGED);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(0);
            let appended = match item {
                Item::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    archive.append_data(&mut header, format!("{path}/"), &[][..])
                }
                Item::File { content, mode } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    archive.append_data(&mut header, path, &content[..])
                }
                Item::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    archive.append_link(&mut header, path, target)
                }
            };
            appended.with_context(|| format!("cannot put {path} into an archive"))?;
        }
        archive.into_inner().context("cannot end an archive")
    }
}

/// gzip, without a name and a time in it.
pub(super) fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.program("/usr/bin/b", vec![1]).unwrap();
        tree.file("usr/a", "x").unwrap();
        tree.link("bin", "usr/bin").unwrap();
        tree.folder("usr").unwrap();
        let bytes = tree.archive().unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, CHANGED));
            (entry.path().unwrap().display().to_string(), header.mode().unwrap())
        });
        let expected = [("bin", 0o777), ("usr/", 0o755), ("usr/a", 0o644), ("usr/bin/", 0o755)];
        let expected = expected.into_iter().chain([("usr/bin/b", 0o755)]);
        assert!(entries.eq(expected.map(|(path, mode)| (path.to_owned(), mode))));
    }

    #[test]
    fn a_path_is_taken_once_and_leads_nowhere_else() {
        let mut tree = Tree::default();
        tree.file("a/b", "").unwrap();
        assert!(tree.file("a/b", "").is_err());
        assert!(tree.file("a/b/c", "").is_err());
        assert!(tree.file("../a", "").is_err());
        assert!(tree.file("/", "").is_err());
    }
}
