//! Entries of session affinity that name a removed backend are deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::TableFamily;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family};
use shunt_core::plan::{Options, Set, TABLE};
use shunt_fake::{Call, Fault, Faulty, NODE, Namespace, service, slice};

use crate::content::{Content, affinity};

/// The kernel resizes the hash table behind the deletion of many entries, and lists only some.
#[test]
fn incomplete_listings_leave_no_entry_behind() -> Result<()> {
    // As many as a transaction deletes itself, and more. A listing has a part for three entries: the
    // first listing is incomplete, and the second one at its start.
    sweeps(200, 100)?;
    sweeps(5_000, 2_000)
}

fn sweeps(clients: u32, torn_parts: usize) -> Result<()> {
    let namespace = Namespace::new();
    let torn = Arc::new(AtomicUsize::new(0));
    let left = torn.clone();
    let decide = move |call: Call<'_>| {
        let one_less = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        let tears = matches!(call, Call::List) && left.fetch_update(order, order, one_less).is_ok();
        tears.then_some(Fault::Torn)
    };
    let kernel = Box::new(Faulty::new(namespace.open(), decide));
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(10_800);
    dataplane.apply(Change::Service(sticky));
    dataplane.apply(Change::Slice(slice(1, Family::V4, &[11, 12])));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;

    let frontends = dataplane.desired().frontends();
    let (key, backend) = frontends
        .iter()
        .find_map(|(key, frontend)| Some((*key, *frontend.all_pools().flatten().next()?)))
        .context("the Service has no frontend")?;
    for client in 0..clients {
        let (mut key, data) = affinity(key, 0, backend);
        key[..4].copy_from_slice(&client.to_be_bytes());
        namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &key, &data);
    }
    torn.store(torn_parts, Ordering::Relaxed);
    dataplane.apply(Change::Slice(slice(1, Family::V4, &[12])));
    dataplane.sync()?;
    ensure!(!Content::of(&namespace, &[])?.learned.is_empty(), "no listing was incomplete");

    let mut now = Instant::now();
    for _ in 0..10_000 {
        now += Duration::from_secs(1);
        dataplane.sweep_affinity(now);
    }
    let left = Content::of(&namespace, &[])?.learned;
    ensure!(left.is_empty(), "{} of {clients} entries are left", left.len());
    ensure!(torn.load(Ordering::Relaxed) == 0, "not all listings were incomplete");
    ensure!(dataplane.next_sweep(now).is_none(), "it looks on for ever");
    Ok(())
}
