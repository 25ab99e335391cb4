//! Recognises the documents of a manifest by `apiVersion` and `kind`.

use crate::source::objects::Kind;

/// The meaning of a document by its `apiVersion` and `kind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Recognised {
    /// An object that shunt uses.
    Ours(Kind),
    /// A list of objects. This is the kind of items without one.
    List(Option<Kind>),
    /// A valid object of a kind that shunt does not use.
    NotUsed,
    /// A likely mistake, with the reason.
    Mistake(String),
}

/// Recognises a document.
pub(super) fn recognise(api_version: &str, name: &str) -> Recognised {
    let item = name.strip_suffix("List");
    if item == Some("") && api_version == "v1" {
        return Recognised::List(None);
    }
    let name = item.unwrap_or(name);
    let is_of_group = |kind: Kind| group(kind.versions()[0]) == group(api_version);
    match Kind::ALL.into_iter().find(|kind| kind.as_str() == name) {
        Some(kind) if kind.versions().contains(&api_version) => match item {
            Some(_) => Recognised::List(Some(kind)),
            None => Recognised::Ours(kind),
        },
        // Another group may have a kind Service or Node, too (Knative has one).
        Some(kind @ (Kind::Service | Kind::Node)) if !is_of_group(kind) => Recognised::NotUsed,
        Some(kind) => {
            let expected = kind.versions()[0];
            Recognised::Mistake(format!(
                "shunt reads {kind} objects only as {expected}; write apiVersion: {expected}"
            ))
        }
        None => match similar(name).filter(|kind| is_of_group(*kind)) {
            Some(kind) => Recognised::Mistake(format!(
                "not a kind of apiVersion {api_version}; did you mean {kind}?"
            )),
            None => Recognised::NotUsed,
        },
    }
}

fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Returns the used kind whose name differs in one letter.
fn similar(name: &str) -> Option<Kind> {
    // The comparison takes time in proportion to the length, and long names resemble no used kind.
    let name = (name.len() < 30).then(|| name.to_ascii_lowercase())?;
    let distance = |kind: &Kind| strsim::osa_distance(&kind.as_str().to_ascii_lowercase(), &name);
    Kind::ALL.into_iter().find(|kind| distance(kind) <= 1)
}
