//! A folder of files as a layer: sorted, with fixed times and owners, so that it is the same wherever
//! and whenever it is made.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::tree::{Item, Tree};

/// The files as a tar archive, all changed at this time, in seconds since 1970.
pub(crate) fn archive(tree: &Tree, time: u64) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (path, item) in tree.items() {
        let mut header = Header::new_gnu();
        header.set_mtime(time);
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

/// gzip, without a name and a time in it.
pub(crate) fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
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
        let bytes = archive(&tree, 17).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 17));
            (entry.path().unwrap().display().to_string(), header.mode().unwrap())
        });
        let expected = [("bin", 0o777), ("usr/", 0o755), ("usr/a", 0o644), ("usr/bin/", 0o755)];
        let expected = expected.into_iter().chain([("usr/bin/b", 0o755)]);
        assert!(entries.eq(expected.map(|(path, mode)| (path.to_owned(), mode))));
    }
}
