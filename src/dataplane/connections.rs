//! Lists the new connections that the elements of shunt's tables have counted.

use nfnetlink::nft::{Error, Kernel};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{FrontendKey, Key, Set, TABLE};

use super::codec::{decode_key, encode_key, table_family};
use super::listing::list;

/// The new connections of a frontend, as one of its elements has counted them. A frontend with
/// policy Local has two: connections of local pods and the node count in the map of the short
/// circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections<'a> {
    /// The frontend.
    pub frontend: FrontendKey,
    /// The map of the element.
    pub map: Set,
    /// The service port, as `namespace/name:port`.
    pub label: &'a str,
    /// The number of connections.
    pub count: u64,
}

/// Lists the connections of all frontends. A missing table has none. While the kernel resizes a map,
/// the listing may lack elements, and have others twice.
///
/// # Errors
/// If the kernel does not answer.
pub fn list_connections(
    kernel: &mut dyn Kernel,
    each: &mut dyn FnMut(Connections<'_>),
) -> Result<(), Error> {
    for family in Family::ALL {
        for map in Set::ALL.into_iter().filter(|set| set.counts()) {
            let listed = list(kernel, family, map, &mut |element| {
                let key = decode_key(family, map, element.key, None);
                if let (Some(Key::Frontend(frontend)), Some(label), Some(counter)) =
                    (key, element.comment, element.counter)
                {
                    each(Connections { frontend, map, label, count: counter.packets });
                }
            });
            match listed {
                Err(Error::Request { errno: Errno::ENOENT, .. }) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Looks up the connections of single elements. Calls `each` for those that exist.
///
/// # Errors
/// If the kernel does not answer.
pub fn look_up_connections(
    kernel: &mut dyn Kernel,
    elements: &[(FrontendKey, Set)],
    each: &mut dyn FnMut(Connections<'_>),
) -> Result<(), Error> {
    for family in Family::ALL {
        for map in Set::ALL.into_iter().filter(|set| set.counts()) {
            let of_map = |(key, set): &&(FrontendKey, Set)| *set == map && key.family() == family;
            let frontends = elements.iter().filter(of_map).map(|(key, _)| *key);
            let keys: Vec<_> = frontends.map(|key| (key, encode_key(Key::Frontend(key)))).collect();
            if keys.is_empty() {
                continue;
            }
            let bytes: Vec<&[u8]> = keys.iter().map(|(_, bytes)| bytes.as_slice()).collect();
            let found = match kernel.lookup(table_family(family), TABLE, map.name(), &bytes) {
                Err(Error::Request { errno: Errno::ENOENT, .. }) => continue,
                found => found?,
            };
            for ((frontend, _), element) in keys.iter().zip(found) {
                let Some(element) = element else { continue };
                if let (Some(label), Some(counter)) = (&element.comment, element.counter) {
                    each(Connections { frontend: *frontend, map, label, count: counter.packets });
                }
            }
        }
    }
    Ok(())
}
