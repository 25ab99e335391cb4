//! The live ruleset, as `nft` sees it.

use anyhow::{Context as _, Result, bail};

use crate::Netns;
use crate::foreign_writer::{ForeignWriter, TABLE};

impl Netns {
    /// The live ruleset in a form that can be compared: handles and counters are left out, and so are
    /// the places of backends within a pool, which depend on the order of events.
    pub fn ruleset(&self) -> Result<Vec<String>> {
        let listing = self.listing()?;
        let json: serde_json::Value = serde_json::from_str(&listing)
            .with_context(|| format!("nft lists the ruleset as {listing:?}"))?;
        let mut lines = Vec::new();
        for object in json["nftables"].as_array().into_iter().flatten() {
            let mut object = object.clone();
            if object.get("metainfo").is_some() || is_foreign(&object) {
                continue;
            }
            let elements = strip(&mut object);
            lines.push(object.to_string());
            lines.extend(elements);
        }
        lines.sort();
        Ok(lines)
    }

    /// The JSON of nft. For a flag of a table that it does not know, nft 1.0.6 prints what lies behind
    /// its list of names; where that is no text, the listing ends there, and another process has
    /// something else in that place.
    fn listing(&self) -> Result<String> {
        for _ in 0..10 {
            let listing = self.output("nft", &["-j", "list", "ruleset"])?;
            if !listing.trim_end().ends_with("\"flags\":") {
                return Ok(listing);
            }
        }
        bail!("nft cannot print the flags of the tables")
    }
}

/// True for what the testbed's foreign writer has left.
fn is_foreign(object: &serde_json::Value) -> bool {
    let body = object.as_object().and_then(|object| object.iter().next());
    let name = |(kind, body): (&String, &serde_json::Value)| {
        let field = if kind == "table" { "name" } else { "table" };
        body.get(field).is_some_and(|name| name == TABLE)
    };
    ForeignWriter::is_wanted() && body.is_some_and(name)
}

fn strip(object: &mut serde_json::Value) -> Vec<String> {
    let Some((kind, body)) = object.as_object_mut().and_then(|o| o.iter_mut().next()) else {
        return Vec::new();
    };
    let is_table = kind == "table";
    let Some(body) = body.as_object_mut() else {
        return Vec::new();
    };
    body.remove("handle");
    if is_table {
        // Whether somebody owns it; nft 1.0.6 prints nonsense there.
        body.remove("flags");
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
