//! A type of the product has one name in its crate.

use std::collections::BTreeMap;

use super::budget::room;

/// The files of each type, by its crate and its name.
pub(super) type Types = BTreeMap<(String, String), Vec<String>>;

/// Adds the types of a file, but for those inside of functions and tests.
pub(super) fn add(types: &mut Types, path: &str, text: &str) {
    let Some((of, _)) = path.rsplit_once("src/") else { return };
    if matches!(room(path), None | Some("tests" | "tools")) {
        return;
    }
    for line in text.lines().filter(|line| !line.contains('"')) {
        let kinds = ["struct ", "enum ", "union ", "trait "];
        let found = kinds.iter().find_map(|kind| line.split_once(kind));
        if let Some((before, name)) = found
            && (before.is_empty() || before.starts_with("pub"))
        {
            let name = name.split(|sign: char| !sign.is_alphanumeric()).next().unwrap_or_default();
            types.entry((of.to_owned(), name.to_owned())).or_default().push(path.to_owned());
        }
    }
}

/// Returns the names that several types have.
pub(super) fn check(types: &Types) -> impl Iterator<Item = String> {
    let several = types.iter().filter(|(_, files)| files.len() > 1);
    several.map(|((_, name), files)| {
        format!("{}: {name} is a type in each: a name says what it alone is", files.join(", "))
    })
}

#[test]
fn a_name_of_two_types_is_found() {
    let mut types = Types::new();
    add(&mut types, "src/a.rs", "pub(in crate::b) struct Report<T> {\n    struct Report;\n}");
    add(&mut types, "crates/core/src/a.rs", "enum Report {}");
    assert_eq!(check(&types).count(), 0);
    add(&mut types, "src/b.rs", "trait Report {}");
    assert!(check(&types).all(|it| it.starts_with("src/a.rs, src/b.rs: Report is a type")));
    assert_eq!(check(&types).count(), 1);
}
