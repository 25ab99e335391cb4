//! The bodies of the fuzz targets in `fuzz/`, which take arbitrary bytes. The tests here run them
//! with seeds, parts of seeds and random changes.
//!
//! They assert the absence of crashes, and two more properties. The plan does not depend on the
//! grouping of changes, and a written configuration is read back unchanged.

use std::path::Path;
use std::sync::Arc;

use shunt_core::model::{Change, Dirty, Store};
use shunt_core::plan::{Desired, Options};

use crate::config::{self, Flags};
use crate::source::kubernetes::ContentType;
use crate::source::{kubernetes, manifests};

/// The name of the agent's Node in the seeds.
const NODE: &str = "node-1";

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 5] = [
    ("manifests", manifests),
    ("configuration", configuration),
    ("objects", objects),
    ("protobuf", protobuf),
    ("netlink", netlink),
];

/// Fuzzes a file of manifests.
pub fn manifests(bytes: &[u8]) {
    let file: Arc<Path> = Path::new("file").into();
    let mut context = manifests::Context { node_name: NODE.into(), ..Default::default() };
    let Ok(manifest) = manifests::parse(&file, bytes, &mut context) else { return };
    for problem in &manifest.problems {
        assert!(problem.to_string().len() < 2_000, "too much to say");
    }
    plan(manifest.objects.into_iter().filter_map(|object| object.change));
}

/// Fuzzes a `KubeProxyConfiguration`.
pub fn configuration(bytes: &[u8]) {
    let load = |bytes| config::load(Some((Path::new("file"), bytes)), &Flags::default());
    let Ok(loaded) = load(bytes) else { return };
    let Ok(full) = serde_json::to_value(&loaded.full) else { return };
    let Ok(written) = serde_saphyr::to_string(&full) else { return };
    let again = load(written.as_bytes());
    let again = again.as_ref().map(|again| &again.config);
    assert_eq!(again.ok(), Some(&loaded.config), "written as\n{written}");
}

/// Fuzzes an answer of the API server: the events of a watch, line by line, or a page of a list.
pub fn objects(bytes: &[u8]) {
    kubernetes::fuzz(ContentType::Json, bytes, NODE).into_iter().for_each(plan);
}

/// Fuzzes an answer of the API server in protobuf: an event of a watch, a page of a list, or an
/// object.
pub fn protobuf(bytes: &[u8]) {
    kubernetes::fuzz(ContentType::Protobuf, bytes, NODE).into_iter().for_each(plan);
}

/// Fuzzes an answer of the kernel: a dump of nf_tables or of connection tracking, or refusals.
pub fn netlink(bytes: &[u8]) {
    nfnetlink::fuzz(bytes);
}

/// Plans changes one after the other, and all at once, and compares the results.
fn plan(changes: impl IntoIterator<Item = Change>) {
    let (mut store, mut dirty) = (Store::new(), Dirty::default());
    let (mut all, mut all_dirty) = (Store::new(), Dirty::default());
    let mut gradual = Desired::new(Options::default(), NODE);
    let mut at_once = Desired::new(Options::default(), NODE);
    for change in changes.into_iter().chain([Change::Synced]) {
        all.apply(change.clone(), &mut all_dirty);
        store.apply(change, &mut dirty);
        gradual.update(&store, &std::mem::take(&mut dirty));
    }
    at_once.update(&all, &all_dirty);
    assert_eq!(gradual.frontends(), at_once.frontends());
    assert_eq!(gradual.members(), at_once.members());
    assert_eq!(gradual.node_context(), at_once.node_context());
    for (key, frontend) in gradual.frontends() {
        assert!(frontend.elements(key).count() > 0, "{key} is nothing");
    }
}

#[cfg(test)]
mod tests;
