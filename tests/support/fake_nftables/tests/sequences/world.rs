//! A dataplane over the fake, and what it has been told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::nft::Kernel;
use nix::errno::Errno;
use shunt::dataplane::{Dataplane, Ownership, Quarantined};
use shunt_core::plan::{FrontendKey, Options, Set, TABLE};
use shunt_fake_nftables::{Faulty, Features, Ipv6, NODE, Namespace, Objects};

use crate::content::{Content, Fate, affinity, fate, flags, frontend_bytes, table_family};
use crate::trouble::Troubles;
use crate::{Round, Step};

/// A dataplane over the fake, and what it has been told.
pub(crate) struct World {
    features: Features,
    namespace: Namespace,
    troubles: Troubles,
    objects: Objects,
    options: Options,
    ownership: Ownership,
    dataplane: Option<Dataplane>,
    /// The time that the dataplane is given.
    clock: Instant,
}

impl World {
    pub(crate) fn new(ipv6: Ipv6) -> World {
        World::over(Namespace::new(), Features { ipv6, ..Features::default() })
    }

    pub(crate) fn over(namespace: Namespace, features: Features) -> World {
        namespace.limit(features);
        World {
            features,
            namespace,
            troubles: Troubles::default(),
            objects: Objects::default(),
            options: Options::default(),
            ownership: Ownership::Own,
            dataplane: None,
            clock: Instant::now(),
        }
    }

    /// An hour later: everything that is done now and then is due.
    fn later(&mut self) -> Instant {
        self.clock += Duration::from_secs(3600);
        self.clock
    }

    /// The dataplane; a new process, if there is none.
    fn dataplane(&mut self) -> Result<&mut Dataplane> {
        if self.dataplane.is_none() {
            let (troubles, namespace) = (self.troubles.clone(), self.namespace.clone());
            let decide =
                move |call: shunt_fake_nftables::Call<'_>| troubles.decide(&namespace, call);
            let kernel: Box<dyn Kernel> = Box::new(Faulty::new(self.namespace.open(), decide));
            let options = self.options.clone();
            let mut dataplane = Dataplane::with_kernel(kernel, options, NODE, self.ownership)?;
            dataplane.apply_all(self.objects.listed());
            self.dataplane = Some(dataplane);
        }
        self.dataplane.as_mut().context("there is one now")
    }

    /// Lets something happen amid troubles, and looks what there is when they are over. True if
    /// all troubles came to pass.
    pub(crate) fn round(&mut self, round: &Round) -> Result<bool> {
        let before = Content::of(&self.namespace, &[])?;
        let settled = self.dataplane.as_ref().is_some_and(|d| d.snapshot().quarantined.is_empty());
        let shared = flags(&self.namespace)?.contains(&0);
        self.troubles.set(&round.troubles);
        self.happen(&round.step)?;
        let now = self.later();
        if let Ok(dataplane) = self.dataplane() {
            _ = dataplane.check(now);
            _ = dataplane.sync();
        }
        let disturbed = !self.troubles.are_left();
        self.troubles.set(&[]);
        if self.troubles.take_killed() {
            self.dataplane = None;
        }
        let foreign = self.troubles.take_foreign();
        let now = self.later();
        let dataplane = self.dataplane()?;
        if foreign {
            dataplane.check(now)?;
        }
        dataplane.sync().context("a sync without troubles")?;
        if let Some(at) = dataplane.next_look() {
            dataplane.reconcile(at)?;
        }
        self.verify()?;
        if !foreign && settled {
            self.verify_learned(&before).context("nobody else did anything")?;
        }
        let calm = round.troubles.is_empty() && settled && !shared;
        if calm && matches!(round.step, Step::Restart(_)) {
            let after = Content::of(&self.namespace, &[])?;
            after.equals(&before, false).context("a restart changes nothing")?;
        }
        Ok(disturbed)
    }

    /// Lets something happen, and nothing else.
    pub(crate) fn calm(&mut self, step: &Step) -> Result<()> {
        self.happen(step)?;
        self.dataplane()?.sync()?;
        Ok(())
    }

    /// Lets something happen, and does nothing about it.
    pub(crate) fn happen(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Changes(changes) => {
                for change in changes {
                    self.objects.apply(change);
                    if let Some(dataplane) = &mut self.dataplane {
                        dataplane.apply(change.clone());
                    }
                }
            }
            Step::Configure(options) => {
                self.options = options.clone();
                if let Some(dataplane) = &mut self.dataplane {
                    dataplane.configure(options.clone(), NODE);
                }
            }
            Step::Restart(ownership) => {
                self.ownership = *ownership;
                self.dataplane = None;
            }
            Step::Tidy => {
                if let Some(dataplane) = &mut self.dataplane {
                    dataplane.remove_unused_chains(Instant::now(), |_| Duration::ZERO);
                }
            }
            Step::Damage(family, damage) => {
                self.troubles.note_foreign();
                damage.inflict(*family, &mut self.namespace.open())?;
            }
            Step::Learn(pick, client) => {
                let Some(dataplane) = &self.dataplane else { return Ok(()) };
                let frontends = dataplane.desired().frontends();
                let content = Content::of(&self.namespace, &[])?;
                let served = frontends.iter().flat_map(|(key, frontend)| {
                    frontend.all_pools().into_iter().flatten().map(|backend| (*key, *backend))
                });
                // What is set aside, or not yet written, teaches nobody anything.
                let served: Vec<_> =
                    served.filter(|(key, backend)| content.teaches(*key, *backend)).collect();
                if !served.is_empty() {
                    let (key, backend) = served[pick % served.len()];
                    let (family, map) = (table_family(key.family()), Set::Affinity.name());
                    let (key, data) = affinity(key, *client, backend);
                    self.namespace.learn(family, TABLE, map, &key, &data);
                }
            }
            Step::Refuse(pick, errno) => {
                let Some(dataplane) = &self.dataplane else { return Ok(()) };
                let frontends: Vec<_> = dataplane.desired().frontends().into_keys().collect();
                if !frontends.is_empty() {
                    refuse(&self.namespace, *pick.get(&frontends), *errno);
                }
            }
            Step::Relent => self.namespace.relent(),
        }
        Ok(())
    }

    /// Fails unless there is what a fresh start would make, but for what is set aside.
    pub(crate) fn verify(&mut self) -> Result<()> {
        let (options, ownership) = (self.options.clone(), self.ownership);
        let fresh = Namespace::new();
        fresh.limit(self.features);
        let mut other = Dataplane::with_kernel(Box::new(fresh.open()), options, NODE, ownership)?;
        other.apply_all(self.objects.listed());
        other.sync()?;
        let set_aside = self.set_aside()?;
        let fresh = Content::of(&fresh, &set_aside)?;
        let content = Content::of(&self.namespace, &set_aside)?;
        content.equals(&fresh, !set_aside.is_empty())?;
        let dataplane = self.dataplane()?;
        if set_aside.is_empty() {
            ensure!(
                dataplane.snapshot().frontends == other.snapshot().frontends,
                "counted otherwise"
            );
            // Chains that nobody needs are known as such.
            let unused = content.on_demand().count() - fresh.on_demand().count();
            ensure!((unused > 0) == dataplane.has_unused_chains(), "{unused} chains too many");
        }
        // One that will leave its tables owns those that it has made.
        let owns = ownership == Ownership::Own;
        ensure!(
            dataplane.snapshot().is_owner == owns || ownership == Ownership::Leave,
            "{ownership:?}"
        );
        Ok(())
    }

    /// Fails if clients go on to backends that are gone, or forget one that is there.
    fn verify_learned(&mut self, before: &Content) -> Result<()> {
        let after = Content::of(&self.namespace, &[])?;
        if !self.set_aside()?.is_empty() {
            return Ok(());
        }
        let desired = self.dataplane()?.desired();
        for (family, key, data) in &after.learned {
            let fate = fate(desired, *family, key, data);
            ensure!(fate != Fate::Goes, "{family} {key:02x?} still goes to {data:02x?}");
        }
        let forgotten = before.learned.difference(&after.learned);
        for (family, key, data) in forgotten {
            let fate = fate(desired, *family, key, data);
            ensure!(fate != Fate::Stays, "{family} {key:02x?} forgot {data:02x?}");
        }
        Ok(())
    }

    fn set_aside(&mut self) -> Result<Vec<Quarantined>> {
        Ok(self.dataplane()?.snapshot().quarantined)
    }

    /// Fails unless everything is there in the end: what was refused is tried again, here by a new
    /// process or, with `patience`, after the pause that it is set aside for.
    pub(crate) fn finish(&mut self, patience: bool) -> Result<()> {
        self.namespace.relent();
        if patience {
            while let Some(trial) = self.dataplane()?.next_trial() {
                std::thread::sleep(trial.saturating_duration_since(Instant::now()));
                self.dataplane()?.sync()?;
            }
        } else {
            self.dataplane = None;
            self.dataplane()?.sync()?;
        }
        ensure!(self.set_aside()?.is_empty(), "still set aside: {:?}", self.set_aside()?);
        self.verify().context("at the end")
    }
}

/// Refuses all new elements of a frontend.
fn refuse(namespace: &Namespace, key: FrontendKey, errno: Errno) {
    let (field, bytes) = frontend_bytes(key);
    let sets: BTreeMap<&str, Set> = Set::ALL.map(|set| (set.name(), set)).into();
    namespace.refuse(move |set, key| {
        let fits = sets.get(set).is_some_and(|set| set.key().first() == Some(&field));
        (fits && key.starts_with(&bytes)).then_some(errno)
    });
}
