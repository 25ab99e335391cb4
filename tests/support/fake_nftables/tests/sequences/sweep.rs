//! Entries of session affinity that name a removed backend are deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::TableFamily;
use nix::errno::Errno;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Change, Family, Protocol, TrafficPolicy};
use shunt_core::plan::{FrontendKey, Options, Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Faulty, NODE, Namespace, service, slice};

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
    dataplane.apply(Change::service(sticky));
    dataplane.apply(Change::slice(slice(1, Family::V4, &[11, 12])));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;

    let frontends = dataplane.desired().frontends();
    let (key, backend) = frontends
        .iter()
        .find_map(|(key, frontend)| {
            Some((*key, *frontend.all_pools().into_iter().flatten().next()?))
        })
        .context("the Service has no frontend")?;
    for client in 0..clients {
        let (mut key, data) = affinity(key, 0, backend);
        key[..4].copy_from_slice(&client.to_be_bytes());
        namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &key, &data);
    }
    torn.store(torn_parts, Ordering::Relaxed);
    dataplane.apply(Change::slice(slice(1, Family::V4, &[12])));
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

/// Under policy Local, the node and its pods use backends elsewhere, too. An entry does not say whose it
/// is, so those that follow the change of the policy may be deleted once, and not again and again.
#[test]
fn policy_local_keeps_what_local_pods_store_later() -> Result<()> {
    let namespace = Namespace::new();
    let kernel = Box::new(namespace.open());
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(10_800);
    dataplane.apply(Change::service(sticky.clone()));
    dataplane.apply(Change::slice(slice(1, Family::V4, &[11, 12])));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    sticky.external_policy = TrafficPolicy::Local;
    dataplane.apply(Change::service(sticky));
    dataplane.sync()?;

    let frontends = dataplane.desired().frontends();
    let (key, elsewhere) = frontends
        .iter()
        .find_map(|(key, frontend)| {
            let [local, all] = frontend.all_pools();
            Some((*key, *all.iter().find(|backend| !local.contains(backend))?))
        })
        .context("no frontend has a short circuit")?;
    let (entry, data) = affinity(key, 7, elsewhere);
    let mut now = Instant::now();
    let mut looks = 0;
    namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &entry, &data);
    while let Some(at) = dataplane.next_sweep(now) {
        ensure!(looks < 100, "it looks on for ever");
        now = now.max(at);
        dataplane.sweep_affinity(now);
        looks += 1;
        namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &entry, &data);
    }
    ensure!(looks > 0, "nothing was looked at behind the commit");
    Ok(())
}

/// A transaction deletes the entries of few clients itself. It does not wait for the listing of many.
#[test]
fn policy_local_takes_backends_elsewhere_from_clients() -> Result<()> {
    takes_backends_elsewhere(10, true)?;
    takes_backends_elsewhere(5_000, false)
}

/// `at_once`: the transaction lists the map, which is small.
fn takes_backends_elsewhere(clients: u32, at_once: bool) -> Result<()> {
    let namespace = Namespace::new();
    let kernel = Box::new(namespace.open());
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(10_800);
    dataplane.apply(Change::service(sticky.clone()));
    // The second one is on this node.
    dataplane.apply(Change::slice(slice(1, Family::V4, &[11, 12])));
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    let key = FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_001);
    let frontend = dataplane.desired().frontend(key).context("the Service has no node port")?;
    let elsewhere = *frontend.all_pools()[0].first().context("no backend")?;
    let learn = |client: u32| {
        let (mut entry, data) = affinity(key, 0, elsewhere);
        entry[..4].copy_from_slice(&client.to_be_bytes());
        namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &entry, &data);
    };
    (0..clients).for_each(learn);
    sticky.external_policy = TrafficPolicy::Local;
    dataplane.apply(Change::service(sticky));
    dataplane.sync()?;

    let left = || anyhow::Ok(Content::of(&namespace, &[])?.learned.len());
    let expected = if at_once { 0 } else { clients as usize };
    ensure!(left()? == expected, "{} of {clients} entries after the transaction", left()?);
    let mut now = Instant::now();
    while dataplane.next_sweep(now).is_some_and(|at| at <= now) {
        dataplane.sweep_affinity(now);
    }
    ensure!(left()? == 0, "{} of {clients} entries are left", left()?);

    // A packet that was between the hooks during the commit stores its entry behind the listing.
    learn(clients);
    while let Some(at) = dataplane.next_sweep(now) {
        now = now.max(at);
        dataplane.sweep_affinity(now);
    }
    ensure!(left()? == 0, "the entry of the late packet is left");
    Ok(())
}

/// A frontend in quarantine stays as it was, and so do its clients.
#[test]
fn quarantined_frontend_keeps_its_clients() -> Result<()> {
    let namespace = Namespace::new();
    let kernel = Box::new(namespace.open());
    let mut dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    for n in [1, 2] {
        let mut sticky = service(n);
        sticky.affinity_seconds = Some(10_800);
        dataplane.apply(Change::service(sticky));
        dataplane.apply(Change::slice(slice(n, Family::V4, &[n * 10 + 1, n * 10 + 2])));
    }
    dataplane.apply(Change::Synced);
    dataplane.sync()?;
    let frontends = dataplane.desired().frontends();
    let cluster_ip = service(1).cluster_ips[0];
    let (key, gone) = frontends
        .iter()
        .find(|(key, _)| matches!(key, FrontendKey::Address(ip, ..) if *ip == cluster_ip))
        .and_then(|(key, frontend)| Some((*key, *frontend.all_pools()[0].first()?)))
        .context("the Service has no ClusterIP")?;
    let (entry, data) = affinity(key, 7, gone);
    namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &entry, &data);
    let octets = entry[4..8].to_vec();
    namespace.refuse(move |_, key| key.starts_with(&octets).then_some(Errno::ENOSPC));
    dataplane.apply(Change::slice(slice(1, Family::V4, &[12])));
    dataplane.sync()?;
    ensure!(!dataplane.snapshot().quarantined.is_empty(), "nothing is in quarantine");
    dataplane.apply(Change::slice(slice(2, Family::V4, &[22])));
    dataplane.sync()?;

    let mut now = Instant::now();
    for _ in 0..100 {
        now += Duration::from_secs(1);
        dataplane.sweep_affinity(now);
        let learned = Content::of(&namespace, &[])?.learned;
        ensure!(learned.len() == 1, "its client was forgotten");
    }
    ensure!(dataplane.next_sweep(now).is_none(), "it looks on for ever");
    Ok(())
}
