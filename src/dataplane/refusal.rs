//! Attributes a refusal of the kernel to frontends, and describes it by their Services.

use std::collections::BTreeMap;
use std::sync::Arc;

use nfnetlink::nft::{Refusal, TableFamily};
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, Desired, FrontendKey, Key, Set, SetMember};

use super::codec::decode_key;
use super::quarantine::Suspect;

/// Returns a description of the frontend or member, with its service port, if any.
pub(super) fn describe(suspect: Suspect, desired: &Desired) -> String {
    match suspect {
        Suspect::Frontend(key) => match desired.frontend(key) {
            Some(frontend) => format!("{key} of {}", frontend.label),
            None => key.to_string(),
        },
        Suspect::Member(SetMember { set, address }) => format!("{address} in {}", set.name()),
    }
}

/// Returns the suspects of a refused message. Empty for objects that all frontends share.
fn suspects(refusal: &Refusal) -> Vec<Suspect> {
    let Some(family) = family_of(refusal) else { return Vec::new() };
    let Some(set) = Set::from_name(&refusal.object) else { return Vec::new() };
    let suspect = |key: &Vec<u8>| {
        Some(match decode_key(family, set, key, None)? {
            Key::Frontend(frontend) | Key::Pool(frontend, _) | Key::Source(frontend, _) => {
                Suspect::Frontend(frontend)
            }
            Key::Address(address) | Key::Hairpin(address) => {
                Suspect::Member(SetMember { set, address })
            }
        })
    };
    refusal.keys.iter().filter_map(suspect).collect()
}

fn family_of(refusal: &Refusal) -> Option<Family> {
    refusal.family.map(|family| match family {
        TableFamily::Ip => Family::V4,
        TableFamily::Ip6 => Family::V6,
    })
}

/// Returns true if the kernel refused an affinity entry.
pub(super) fn is_about_affinity(refusal: &Refusal) -> bool {
    // A chain, too, could have that name.
    !refusal.keys.is_empty() && refusal.object == Set::Affinity.name()
}

/// The cause of a refused transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// These suspects, with the kernel's reasons.
    Suspects(BTreeMap<Suspect, Arc<str>>),
    /// One or some of the elements of a message.
    SomeElement,
    /// An object that all frontends need.
    Everything,
}

/// Returns the cause of a refusal. `users` returns the frontends that need an on-demand chain.
pub(super) fn blame(
    refusals: &[Refusal],
    users: impl Fn(Family, ChainName) -> Vec<FrontendKey>,
) -> Blame {
    let mut found: BTreeMap<Suspect, Arc<str>> = BTreeMap::new();
    for refusal in refusals {
        let reason: Arc<str> = refusal.to_string().into();
        let on_demand = ChainName::parse(&refusal.object).filter(|name| name.is_on_demand());
        let suspects = match (on_demand, family_of(refusal)) {
            (Some(name), Some(family)) => {
                users(family, name).into_iter().map(Suspect::Frontend).collect()
            }
            _ if refusal.keys.len() > 1 => return Blame::SomeElement,
            _ => suspects(refusal),
        };
        if suspects.is_empty() {
            return Blame::Everything;
        }
        for suspect in suspects {
            // The first reason is the cause; the others may be its consequences.
            found.entry(suspect).or_insert_with(|| reason.clone());
        }
    }
    Blame::Suspects(found)
}
