//! The archive that a kernel unpacks as its first file system: cpio, in the format "newc"
//! (`Documentation/driver-api/early-userspace/buffer-format.rst` of the kernel).

use std::io::{self, Write};

use crate::tree::{Item, Tree};

/// Types of files, as in `st_mode`.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// The name of the entry that ends an archive.
const END: &str = "TRAILER!!!";

/// Write `tree` as an archive. Several may follow one another: the kernel unpacks them all.
pub(super) fn write(tree: &Tree, to: &mut impl Write) -> io::Result<()> {
    for (number, (path, item)) in (1..).zip(tree.items()) {
        match item {
            Item::Folder => entry(to, number, path, FOLDER | 0o755, b"")?,
            Item::File { content, mode } => entry(to, number, path, FILE | mode, content)?,
            Item::Link { target } => entry(to, number, path, LINK | 0o777, target.as_bytes())?,
        }
    }
    entry(to, 0, END, 0, b"")
}

fn entry(to: &mut impl Write, inode: u32, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
    // inode, mode, uid, gid, links, mtime, size, device and special device (2 each), name, checksum
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    let mut header = String::from("070701");
    fields.iter().for_each(|field| header += &format!("{field:08x}"));
    to.write_all(header.as_bytes())?;
    to.write_all(name.as_bytes())?;
    to.write_all(b"\0")?;
    pad(to, header.len() + name.len() + 1)?;
    to.write_all(content)?;
    pad(to, content.len())
}

/// Zeros up to the next multiple of four.
fn pad(to: &mut impl Write, length: usize) -> io::Result<()> {
    to.write_all(&[0; 3][..length.wrapping_neg() % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_its_entries_at_multiples_of_four() {
        let mut tree = Tree::default();
        tree.file("a/b", "content").unwrap();
        tree.link("l", "a/b").unwrap();
        let mut archive = Vec::new();
        write(&tree, &mut archive).unwrap();
        assert_eq!(archive.len() % 4, 0);

        let mut names = Vec::new();
        let mut rest = &archive[..];
        while !rest.is_empty() {
            assert!(rest.starts_with(b"070701"));
            let field = |n: usize| {
                let digits = std::str::from_utf8(&rest[6 + 8 * n..14 + 8 * n]).unwrap();
                usize::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = String::from_utf8_lossy(&rest[110..109 + name_size]).into_owned();
            let start = (110 + name_size).next_multiple_of(4);
            names.push((name, mode, rest[start..start + size].to_vec()));
            rest = &rest[(start + size).next_multiple_of(4)..];
        }
        let expected = [
            ("a", 0o040_755, &b""[..]),
            ("a/b", 0o100_644, b"content"),
            ("l", 0o120_777, b"a/b"),
            (END, 0, b""),
        ];
        let expected =
            expected.map(|(name, mode, content)| (name.to_owned(), mode, content.to_vec()));
        assert_eq!(names, expected);
    }
}
