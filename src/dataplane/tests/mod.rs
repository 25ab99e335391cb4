//! The dataplane over a namespace of `tests/support/fake_nftables`: no privileges, and any fault at any call.

use std::error::Error;

use nfnetlink::nft::TableFamily;
use shunt_core::model::{Change, Family};
use shunt_core::plan::{Options, Set, TABLE};
use shunt_fake_nftables::{Listing, NODE, Namespace, service, slice};

use super::{Dataplane, Ownership};

#[test]
fn service_with_an_endpoint_is_committed_once() -> Result<(), Box<dyn Error>> {
    let namespace = Namespace::new();
    let kernel = Box::new(namespace.open());
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    dataplane.apply(Change::Service(service(1)));
    dataplane.apply(Change::Slice(slice(1, Family::V4, &[11])));
    dataplane.apply(Change::Synced);

    let report = dataplane.sync()?.ok_or("nothing was written")?;
    assert_eq!(dataplane.snapshot().generation, Some(report.generation));
    let list = || Listing::of(&mut namespace.open(), TableFamily::Ip, TABLE);
    let listing = list()?.ok_or("no table")?;
    let endpoints = &listing.elements[Set::Endpoints.name()];
    // The ClusterIP and the ExternalIP each have a pool of one, which is 10.244.0.11 port 8080.
    let addresses: Vec<&[u8]> = endpoints.iter().map(|element| &element.key[..4]).collect();
    assert_eq!(addresses, [[10, 96, 0, 1], [198, 51, 0, 1]]);
    for element in endpoints {
        assert_eq!(element.data.as_deref(), Some(&[10, 244, 0, 11, 0x1f, 0x90, 0, 0][..]));
    }
    assert_eq!(dataplane.sync()?, None);
    assert_eq!(list()?, Some(listing));
    Ok(())
}
