//! The verdicts and counters of all frontends in the kernel, from dumps of few maps. Reads only.

use foldhash::HashMap;
use nfnetlink::nft::{DumpedElement, Error, Kernel, Socket};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{ChainName, FrontendKey, Key, Pools, TABLE, Value};

use super::codec::{Bytes, decode_key, decode_value, encode_key, table_family};
use super::listing::list_again;

/// The frontends in the kernel.
pub type Verdicts = HashMap<FrontendKey, Verdict>;

/// What the kernel does with new connections to a frontend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
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

impl Verdict {
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

    fn note(&mut self, pools: Pools, family: Family, element: &DumpedElement<'_>) {
        let installed = Installed {
            exists: true,
            value: element.data.and_then(|data| decode_value(family, data)),
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

/// Dumps the verdict maps of both families. While the kernel resizes a map, or others commit all the
/// time, the dump may lack elements: see [`look_up_verdicts`].
///
/// # Errors
/// If the kernel does not answer.
pub fn verdicts(kernel: &mut dyn Kernel) -> Result<Verdicts, Error> {
    let mut found = Verdicts::default();
    for family in Family::ALL {
        if kernel.table(table_family(family), TABLE)?.is_none() {
            continue;
        }
        for pools in Pools::ALL {
            let mut note = |element: DumpedElement<'_>| {
                let key = decode_key(family, pools.verdicts(), element.key, None);
                if let Some(Key::Frontend(key)) = key {
                    found.entry(key).or_default().note(pools, family, &element);
                }
            };
            list_again(kernel, family, pools.verdicts().name(), &mut note)?;
        }
    }
    Ok(found)
}

/// Looks up single frontends, and adds those that the kernel has.
///
/// # Errors
/// If the kernel does not answer.
pub fn look_up_verdicts(
    socket: &mut Socket,
    keys: &[FrontendKey],
    found: &mut Verdicts,
) -> Result<(), Error> {
    for family in Family::ALL {
        for pools in Pools::ALL {
            let keys: Vec<FrontendKey> = keys
                .iter()
                .copied()
                .filter(|key| key.family() == family)
                .filter(|key| {
                    let (main, short_circuit) = shunt_core::plan::Frontend::pools_of(*key);
                    [main, short_circuit].contains(&pools)
                })
                .collect();
            let encoded: Vec<Bytes> =
                keys.iter().map(|key| encode_key(Key::Frontend(*key))).collect();
            let encoded: Vec<&[u8]> = encoded.iter().map(Bytes::as_slice).collect();
            if encoded.is_empty() {
                continue;
            }
            let set = pools.verdicts().name();
            let elements = match socket.lookup(table_family(family), TABLE, set, &encoded) {
                // There is no table.
                Err(Error::Request { errno: Errno::ENOENT, .. }) => continue,
                elements => elements?,
            };
            for (key, element) in keys.iter().zip(&elements) {
                let Some(element) = element else { continue };
                found.entry(*key).or_default().note(pools, family, &element.as_listed());
            }
        }
    }
    Ok(())
}
