//! The dataplane over `tests/support/fake_nftables`: no privileges, made-up time, any fault at any call.

mod counters;
mod damage;
mod failures;
mod gone;
mod pace;
mod rules;
mod world;

use nfnetlink::nft::TableFamily;
use shunt_core::plan::{Set, TABLE};
use shunt_fake_nftables::Listing;

use self::world::{What, World, cluster};

#[test]
fn service_with_an_endpoint_is_committed_once() {
    let mut world = World::serving(&[11]);
    let listing = world.listing();
    let endpoints = &listing.elements[Set::Endpoints.name()];
    // The ClusterIP and the ExternalIP each have a pool of one, which is 10.244.0.11 port 8080.
    let addresses: Vec<&[u8]> = endpoints.iter().map(|element| &element.key[..4]).collect();
    assert_eq!(addresses, [[10, 96, 0, 1], [198, 51, 0, 1]]);
    for element in endpoints {
        assert_eq!(element.data.as_deref(), Some(&[10, 244, 0, 11, 0x1f, 0x90, 0, 0][..]));
    }
    world.apply(cluster(&[11]));
    assert_eq!(world.events(), [What::Unchanged]);
    assert_eq!(world.listing(), listing);
}

#[test]
fn nothing_is_programmed_before_the_source_has_listed_everything() {
    let mut world = World::new();
    let mut changes = cluster(&[11]);
    let synced = changes.pop().expect("the last change");
    world.send(changes);
    world.pass(std::time::Duration::from_secs(3600));
    assert_eq!(world.events(), []);
    assert_eq!(world.backlog.oldest(), None, "changes wait for the source, not for the dataplane");
    let table = Listing::of(&mut world.namespace.open(), TableFamily::Ip, TABLE);
    assert_eq!(table.expect("a listing"), None);
    world.commit(vec![synced]);
}
