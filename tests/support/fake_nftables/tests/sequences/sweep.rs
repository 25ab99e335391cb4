//! Entries of session affinity that name a removed backend are deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::TableFamily;
use nix::errno::Errno;
use shunt::dataplane::{Dataplane, Ownership};
use shunt_core::model::{Backend, Change, Family, Protocol, Service, TrafficPolicy};
use shunt_core::plan::{FrontendKey, Options, Set, TABLE};
use shunt_fake_nftables::{Call, Fault, Faulty, NODE, Namespace, service, slice};

use crate::content::{Content, affinity};

/// The node port of the first Service.
const NODE_PORT: FrontendKey = FrontendKey::NodePort(Family::V4, Protocol::Tcp, 30_001);

/// Two Services with session affinity and two endpoints each, of which one is on this node.
struct Scene {
    namespace: Namespace,
    dataplane: Dataplane,
}

impl Scene {
    fn new(decide: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) -> Result<Scene> {
        let namespace = Namespace::new();
        let kernel = Box::new(Faulty::new(namespace.open(), decide));
        let dataplane = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
        let mut scene = Scene { namespace, dataplane };
        for n in [1, 2] {
            scene.dataplane.apply(Change::service(sticky(n)));
            scene.dataplane.apply(Change::slice(slice(n, Family::V4, &[n * 10 + 1, n * 10 + 2])));
        }
        scene.change(Change::Synced)?;
        Ok(scene)
    }

    fn change(&mut self, change: Change) -> Result<()> {
        self.dataplane.apply(change);
        self.dataplane.sync()?;
        Ok(())
    }

    /// The policy of the first Service becomes Local.
    fn local(&mut self) -> Result<()> {
        let external_policy = TrafficPolicy::Local;
        self.change(Change::service(Service { external_policy, ..sticky(1) }))
    }

    /// The endpoint of a frontend that is not on this node.
    fn elsewhere(&self, key: FrontendKey) -> Result<Backend> {
        let frontend = self.dataplane.desired().frontend(key).context("no such frontend")?;
        Ok(*frontend.all_pools()[0].first().context("no backend")?)
    }

    /// A client learns which backend it has.
    fn learn(&self, client: u32, key: FrontendKey, backend: Backend) {
        let (mut entry, data) = affinity(key, 0, backend);
        entry[..4].copy_from_slice(&client.to_be_bytes());
        self.namespace.learn(TableFamily::Ip, TABLE, Set::Affinity.name(), &entry, &data);
    }

    /// How many clients have learned something.
    fn learned(&self) -> Result<usize> {
        Ok(Content::of(&self.namespace, &[])?.learned.len())
    }

    /// Looks for entries whenever there may be some, and returns how often.
    fn look(&mut self, mut behind_each: impl FnMut(&Scene)) -> Result<usize> {
        let mut looks = 0;
        while let Some(at) = self.dataplane.next_look() {
            ensure!(looks < 100, "it looks on for ever");
            self.dataplane.reconcile(at)?;
            looks += 1;
            behind_each(self);
        }
        Ok(looks)
    }
}

fn sticky(n: u16) -> Service {
    Service { affinity_seconds: Some(10_800), ..service(n) }
}

/// The kernel resizes the hash table behind the deletion of many entries, and lists only some.
#[test]
fn incomplete_listings_leave_no_entry_behind() -> Result<()> {
    for (clients, torn_listings) in [(200, 1), (5_000, 3)] {
        let torn = Arc::new(AtomicUsize::new(0));
        let left = torn.clone();
        let mut scene = Scene::new(move |call| {
            let (order, less) = (Ordering::Relaxed, |left: usize| left.checked_sub(1));
            let tears = matches!(call, Call::List) && left.fetch_update(order, order, less).is_ok();
            tears.then_some(Fault::Torn)
        })?;
        let backend = scene.elsewhere(NODE_PORT)?;
        (0..clients).for_each(|client| scene.learn(client, NODE_PORT, backend));
        torn.store(torn_listings, Ordering::Relaxed);
        scene.change(Change::slice(slice(1, Family::V4, &[12])))?;
        ensure!(scene.learned()? > 0, "no listing was incomplete");
        scene.look(|_| {})?;
        ensure!(scene.learned()? == 0, "{} of {clients} entries are left", scene.learned()?);
        ensure!(torn.load(Ordering::Relaxed) == 0, "not all listings were incomplete");
    }
    Ok(())
}

/// Under policy Local, the node and its pods use backends elsewhere, too. An entry does not say whose it
/// is, so those that follow the change of the policy may be deleted once, and not again and again.
#[test]
fn policy_local_keeps_what_local_pods_store_later() -> Result<()> {
    let mut scene = Scene::new(|_| None)?;
    let backend = scene.elsewhere(NODE_PORT)?;
    scene.local()?;
    scene.learn(7, NODE_PORT, backend);
    let looks = scene.look(|scene| scene.learn(7, NODE_PORT, backend))?;
    ensure!(looks > 0, "nothing was looked at behind the commit");
    Ok(())
}

#[test]
fn policy_local_takes_backends_elsewhere_from_clients() -> Result<()> {
    for clients in [10, 5_000] {
        let mut scene = Scene::new(|_| None)?;
        let backend = scene.elsewhere(NODE_PORT)?;
        (0..clients).for_each(|client| scene.learn(client, NODE_PORT, backend));
        scene.local()?;
        ensure!(scene.learned()? == 0, "{} of {clients} entries are left", scene.learned()?);
        // A packet that was between the hooks during the commit stores its entry behind the listing.
        scene.learn(clients, NODE_PORT, backend);
        scene.look(|_| {})?;
        ensure!(scene.learned()? == 0, "the entry of the late packet is left");
    }
    Ok(())
}

/// A frontend in quarantine stays as it was, and so do its clients.
#[test]
fn quarantined_frontend_keeps_its_clients() -> Result<()> {
    let mut scene = Scene::new(|_| None)?;
    let cluster_ip = FrontendKey::Address(service(1).cluster_ips[0], Protocol::Tcp, 80);
    let gone = scene.elsewhere(cluster_ip)?;
    scene.learn(7, cluster_ip, gone);
    let octets = [10, 96, 0, 1];
    scene.namespace.refuse(move |_, key| key.starts_with(&octets).then_some(Errno::ENOSPC));
    scene.change(Change::slice(slice(1, Family::V4, &[12])))?;
    ensure!(!scene.dataplane.snapshot().quarantined.is_empty(), "nothing is in quarantine");
    scene.change(Change::slice(slice(2, Family::V4, &[22])))?;
    scene.look(|_| {})?;
    ensure!(scene.learned()? == 1, "its client was forgotten");
    Ok(())
}
