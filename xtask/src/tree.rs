//! Files that an archive is to be made of: a layer of an image, or the first file system of a machine.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Files by their paths, which are relative to the root, without `./`.
#[derive(Default)]
pub(crate) struct Tree {
    items: BTreeMap<String, Item>,
}

/// What a path leads to.
pub(crate) enum Item {
    Folder,
    File { content: Vec<u8>, mode: u32 },
    Link { target: String },
}

impl Tree {
    /// A file that can be read by all.
    pub(crate) fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) -> Result<()> {
        self.add(path, Item::File { content: content.into(), mode: 0o644 })
    }

    /// A file that can be run by all.
    pub(crate) fn program(&mut self, path: &str, content: Vec<u8>) -> Result<()> {
        self.add(path, Item::File { content, mode: 0o755 })
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.add(path, Item::Link { target: target.to_owned() })
    }

    /// An empty folder.
    pub(crate) fn folder(&mut self, path: &str) -> Result<()> {
        self.add(path, Item::Folder)
    }

    /// All of it, each folder before what is in it.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&str, &Item)> {
        self.items.iter().map(|(path, item)| (path.as_str(), item))
    }

    /// Returns the tree without its folders, for an archive that lists files only.
    pub(crate) fn without_folders(self) -> Self {
        let files = |(_, item): &(String, Item)| !matches!(item, Item::Folder);
        Self { items: self.items.into_iter().filter(files).collect() }
    }

    /// Writes the files into a folder, which is made.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (path, item) in self.items() {
            let path = folder.join(path);
            let written = match item {
                Item::Folder => fs::create_dir_all(&path),
                Item::File { content, mode } => fs::write(&path, content)
                    .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode))),
                Item::Link { target } => symlink(target, &path),
            };
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
