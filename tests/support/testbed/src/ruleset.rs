//! The live ruleset, as `nft` sees it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::Netns;
use crate::foreign_writer::{ForeignWriter, TABLE};

impl Netns {
    /// The live ruleset in a form that can be compared: handles and counters are left out, and so are
    /// the places of backends within a pool, which depend on the order of events.
    pub fn ruleset(&self) -> Result<Vec<String>> {
        let listing = self.output("nft", &["-j", "list", "ruleset"])?;
        // For a flag of a table that it does not know, nft 1.0.6 prints what lies behind its list of
        // names. Where that is no text, the listing ends there.
        if listing.trim_end().ends_with("\"flags\":") {
            return self.ruleset_by_object();
        }
        Ok(comparable(objects(&listing)?))
    }

    /// The same, by listings without tables.
    pub fn ruleset_by_object(&self) -> Result<Vec<String>> {
        let list = |what: &[&str]| -> Result<Vec<Value>> {
            let listing = self.output("nft", &[&["-j", "list"], what].concat())?;
            Ok(objects(&listing)?.into_iter().filter(|it| it.get("metainfo").is_none()).collect())
        };
        let mut all = [list(&["sets"])?, list(&["maps"])?].concat();
        let mut tables = BTreeSet::new();
        for chain in list(&["chains"])? {
            let field = |name: &str| chain["chain"][name].as_str().unwrap_or_default().to_owned();
            let [family, table, name] = ["family", "table", "name"].map(field);
            all.extend(list(&["chain", &family, &table, &name])?);
            tables.insert((family, table));
        }
        let table = |(family, name)| json!({"table": {"family": family, "name": name}});
        all.extend(tables.into_iter().map(table));
        Ok(comparable(all))
    }
}

/// Reads the objects of a listing.
fn objects(listing: &str) -> Result<Vec<Value>> {
    let json: Value = serde_json::from_str(listing)
        .with_context(|| format!("nft lists the ruleset as {listing:?}"))?;
    Ok(json["nftables"].as_array().cloned().unwrap_or_default())
}

fn comparable(objects: Vec<Value>) -> Vec<String> {
    let mut lines = Vec::new();
    for mut object in objects {
        // nft 1.0.6 crashes when it lists time-outs without their table. Their names say what they are.
        if object.get("metainfo").is_some()
            || object.get("ct timeout").is_some()
            || is_foreign(&object)
        {
            continue;
        }
        let elements = strip(&mut object);
        lines.push(object.to_string());
        lines.extend(elements);
    }
    lines.sort();
    lines
}

/// True for what the testbed's foreign writer has left.
fn is_foreign(object: &Value) -> bool {
    let body = object.as_object().and_then(|object| object.iter().next());
    let name = |(kind, body): (&String, &Value)| {
        let field = if kind == "table" { "name" } else { "table" };
        body.get(field).is_some_and(|name| name == TABLE)
    };
    ForeignWriter::is_wanted() && body.is_some_and(name)
}

fn strip(object: &mut Value) -> Vec<String> {
    let Some((kind, body)) = object.as_object_mut().and_then(|o| o.iter_mut().next()) else {
        return Vec::new();
    };
    let is_table = kind == "table";
    let Some(body) = body.as_object_mut() else {
        return Vec::new();
    };
    body.remove("handle");
    if is_table {
        // The owner is not part of the ruleset; nft 1.0.6 does not know its flags.
        body.remove("flags");
    }
    if body.get("flags").is_none() {
        // The size of a set depends on its history, unless packets fill it.
        body.remove("size");
    }
    let name = body.get("name").and_then(|n| n.as_str()).unwrap_or_default().to_owned();
    let elements = body.remove("elem");
    let elements = elements.as_ref().and_then(|e| e.as_array());
    elements
        .into_iter()
        .flatten()
        .map(|element| {
            let mut element = element.clone();
            for part in element.as_array_mut().into_iter().flatten() {
                if let Some(part) = part.get_mut("elem").and_then(|e| e.as_object_mut()) {
                    part.remove("counter");
                }
            }
            if name.ends_with("endpoints")
                && let Some(key) = element[0]["concat"].as_array_mut()
            {
                key.pop();
            }
            format!("{name} {element}")
        })
        .collect()
}
