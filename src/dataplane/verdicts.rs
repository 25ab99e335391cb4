//! The verdicts and counters of frontends in the kernel, from dumps of few maps and lookups. Reads
//! only.

use foldhash::HashMap;
use nfnetlink::nft::{DumpedElement, Error, Kernel};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, Frontend, FrontendKey, Key, Pools, Value};

use super::codec::{Bytes, decode_key, decode_value, encode_key};
use super::listing::{list_again, look_up};

/// The frontends in the kernel.
pub type Verdicts = HashMap<FrontendKey, FrontendVerdict>;

/// What the kernel does with new connections to a frontend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontendVerdict {
    /// The verdict for all clients.
    pub main: Installed,
    /// The verdict for local pods and the node, if the policy is Local.
    pub short_circuit: Installed,
    /// The comment of the elements, `namespace/name:port`.
    pub label: Box<str>,
}

/// An element of a verdict map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installed {
    /// True if the kernel has the element.
    pub exists: bool,
    /// The verdict; `None` without the element, or if shunt never writes such a verdict.
    pub value: Option<Value>,
    /// The number of new connections.
    pub connections: u64,
}

impl FrontendVerdict {
    /// Returns the number of new connections of all clients.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.main.connections.saturating_add(self.short_circuit.connections)
    }

    /// Returns the number of slots of a pool; 0 without the pool.
    #[must_use]
    pub fn slots(&self, pools: Pools) -> usize {
        let installed = if pools.is_short_circuit() { &self.short_circuit } else { &self.main };
        match installed.value {
            Some(Value::Goto(ChainName::Balancer { count, .. })) => count as usize,
            _ => 0,
        }
    }

    fn note(&mut self, key: FrontendKey, pools: Pools, element: &DumpedElement<'_>) {
        let installed = Installed {
            exists: true,
            value: element.data.and_then(|data| decode_value(key.family(), data)),
            connections: element.counter.map_or(0, |counter| counter.packets),
        };
        if pools.is_short_circuit() {
            self.short_circuit = installed;
        } else {
            self.main = installed;
        }
        if let Some(label) = element.comment.filter(|label| **label != *self.label) {
            self.label = label.into();
        }
    }
}

/// Returns the verdicts of all frontends, from listings of the verdict maps. While the kernel resizes a
/// map, or others commit all the time, some may be missing: see [`add_verdicts`].
///
/// # Errors
/// If the kernel does not answer.
pub fn verdicts(kernel: &mut dyn Kernel) -> Result<Verdicts, Error> {
    let mut found = Verdicts::default();
    for family in Family::ALL {
        for pools in Pools::ALL {
            let map = pools.verdicts();
            let listed = list_again(kernel, family, map.name(), &mut |element| {
                if let Some(Key::Frontend(key)) = decode_key(family, map, element.key, None) {
                    found.entry(key).or_default().note(key, pools, &element);
                }
            });
            match listed {
                // There is no table.
                Err(Error::Request { errno: Errno::ENOENT, .. }) => {}
                listed => listed?,
            }
        }
    }
    Ok(found)
}

/// Looks up single frontends, and adds the ones in the kernel.
///
/// # Errors
/// If the kernel does not answer.
pub fn add_verdicts(
    kernel: &mut dyn Kernel,
    keys: &[FrontendKey],
    found: &mut Verdicts,
) -> Result<(), Error> {
    for family in Family::ALL {
        for pools in Pools::ALL {
            let is_in_map = |key: &&FrontendKey| {
                let (main, short_circuit) = Frontend::pools_of(**key);
                key.family() == family && [main, short_circuit].contains(&pools)
            };
            let keys: Vec<FrontendKey> = keys.iter().filter(is_in_map).copied().collect();
            let encoded: Vec<Bytes> =
                keys.iter().map(|key| encode_key(Key::Frontend(*key))).collect();
            if encoded.is_empty() {
                continue;
            }
            look_up(kernel, family, pools.verdicts(), &encoded, &mut |place, element| {
                if let Some(key) = keys.get(place) {
                    found.entry(*key).or_default().note(*key, pools, &element);
                }
            })?;
        }
    }
    Ok(())
}
