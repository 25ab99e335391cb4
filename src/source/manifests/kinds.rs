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

/// The other kinds in the API groups of the used kinds.
const NEIGHBOURS: [(&str, &[&str]); 3] = [
    (
        "",
        &[
            "Binding",
            "ComponentStatus",
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "ServiceAccount",
        ],
    ),
    ("discovery.k8s.io", &[]),
    ("networking.k8s.io", &["IPAddress", "Ingress", "IngressClass", "NetworkPolicy"]),
];

fn named(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.as_str() == name)
}

/// Recognises a document.
pub(super) fn recognise(api_version: &str, name: &str) -> Recognised {
    let item = name.strip_suffix("List");
    if item == Some("") && api_version == "v1" {
        return Recognised::List(None);
    }
    if let Some(kind) = named(item.unwrap_or(name)) {
        if kind.versions().contains(&api_version) {
            return match item {
                Some(_) => Recognised::List(Some(kind)),
                None => Recognised::Ours(kind),
            };
        }
        // Another group may have a kind Service or Node, too (Knative has one).
        let distinctive = matches!(kind, Kind::EndpointSlice | Kind::ServiceCidr);
        if distinctive || neighbours(api_version).is_some() {
            let expected = kind.versions()[0];
            return Recognised::Mistake(format!(
                "shunt reads {kind} objects only as {expected}; write apiVersion: {expected}"
            ));
        }
        return Recognised::NotUsed;
    }
    match neighbours(api_version) {
        Some(kinds) if !kinds.contains(&item.unwrap_or(name)) => {
            let hint = similar(name).map(|kind| format!("; did you mean {kind}?"));
            Recognised::Mistake(format!(
                "not a kind of apiVersion {api_version}{}",
                hint.unwrap_or_default()
            ))
        }
        _ => Recognised::NotUsed,
    }
}

fn neighbours(api_version: &str) -> Option<&'static [&'static str]> {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    NEIGHBOURS.iter().find(|(name, _)| *name == group).map(|(_, kinds)| *kinds)
}

/// Returns the used kind with the most similar name.
fn similar(name: &str) -> Option<Kind> {
    // The comparison takes time in proportion to the length, and long names resemble no used kind.
    let name = (name.len() < 30).then(|| name.to_ascii_lowercase())?;
    let distance = |kind: &Kind| strsim::osa_distance(&kind.as_str().to_ascii_lowercase(), &name);
    Kind::ALL.into_iter().min_by_key(distance).filter(|kind| distance(kind) <= 2)
}
