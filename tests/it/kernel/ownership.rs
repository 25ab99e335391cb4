//! Tables that nobody else can change, where the kernel can have such.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nfnetlink::nft::{Error, Kernel, Socket, TableFamily};
use nix::errno::Errno;
use shunt::dataplane::{Dataplane, Ownership, SyncReport};
use shunt_core::model::{Change, TrafficPolicy};
use shunt_core::plan::{Options, Set};
use shunt_fake_nftables::{NODE, service};
use shunt_testbed::Netns;

use super::cluster::dataplane;
use super::faults::Faults;
use super::start::some_cluster;

/// `NFT_TABLE_F_OWNER` and `NFT_TABLE_F_PERSIST`.
const OWNED: u32 = 0x6;

fn owner(ns: &Netns) -> Result<Dataplane> {
    let open = || Ok(Dataplane::open(Options::default(), NODE, Ownership::Own)?);
    let mut dataplane = ns.run(open)?;
    dataplane.apply_all(some_cluster());
    dataplane.apply(Change::Synced);
    Ok(dataplane)
}

/// The flags of both tables.
fn flags(ns: &Netns) -> Result<[Option<u32>; 2]> {
    ns.run(|| {
        let mut socket = Socket::open()?;
        let [ip, ip6] = [TableFamily::Ip, TableFamily::Ip6].map(|f| socket.table(f, "shunt"));
        Ok([ip?.map(|table| table.flags), ip6?.map(|table| table.flags)])
    })
}

/// Syncs as soon as a former owner is gone. Its socket is closed for good once no process has it:
/// other tests that fork at this moment have it until they execute their program.
fn sync_after(dataplane: &mut Dataplane) -> Result<Option<SyncReport>> {
    let start = Instant::now();
    loop {
        match dataplane.sync() {
            Err(error) if matches!(error.kernel(), Error::Owned { .. }) => {
                ensure!(start.elapsed() < Duration::from_secs(10), "{error}");
            }
            other => return Ok(other?),
        }
    }
}

/// Kernels before 6.9 have no such tables; there the agent must do without.
fn kernel_can() -> Result<bool> {
    let ns = Netns::new()?;
    let mut dataplane = owner(&ns)?;
    dataplane.sync()?;
    let flags = flags(&ns)?;
    assert!(flags == [Some(OWNED); 2] || flags == [Some(0); 2], "{flags:?}");
    assert_eq!(dataplane.snapshot().is_owner, flags == [Some(OWNED); 2]);
    Ok(dataplane.snapshot().is_owner)
}

/// An hour after the time of the last call: elements are compared only now and then.
fn later() -> Instant {
    static HOURS: AtomicUsize = AtomicUsize::new(0);
    let hours = HOURS.fetch_add(1, Ordering::Relaxed) + 1;
    Instant::now() + Duration::from_secs(3600) * hours as u32
}

#[test]
fn owned_tables_refuse_other_writers() -> Result<()> {
    let owned = kernel_can()?;
    let ns = Netns::new()?;
    let mut running = owner(&ns)?;
    running.sync()?;
    let wanted = ns.ruleset()?;
    for damage in [
        "flush ruleset",
        "delete table ip shunt",
        "flush map ip shunt service-ips",
        "add rule ip shunt services accept",
    ] {
        assert!(!running.check(later())?);
        // `flush ruleset` leaves such tables out, the others are refused.
        let refused = ns.nft(damage).is_err();
        assert_eq!(refused, owned && damage != "flush ruleset", "{damage}");
        assert_eq!(ns.ruleset()? == wanted, owned, "{damage}");
        assert_eq!(running.check(later())?, !owned, "{damage}");
        if !owned {
            let repaired = running.sync()?.map(|report| report.repaired);
            assert!(repaired.is_some_and(|repaired| repaired > 0), "{damage}: {repaired:?}");
        }
        assert_eq!(ns.ruleset()?, wanted, "{damage}");
    }
    Ok(())
}

/// Tables and elements are compared in one listing: every set is listed once, and for each table there
/// are lists of tables, sets, objects, chains and rules.
#[test]
fn unchanged_tables_are_listed_once_behind_a_foreign_commit() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let mut running = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Share)?;
    running.apply_all(some_cluster());
    // Something in every set.
    let mut restricted = service(1);
    restricted.affinity_seconds = Some(600);
    restricted.load_balancer_ips = vec!["198.51.100.1".parse()?, "2001:db8::1".parse()?];
    restricted.source_ranges = vec!["192.0.2.0/25".parse()?, "2001:db8:1::/64".parse()?];
    restricted.external_policy = TrafficPolicy::Local;
    running.apply(Change::service(restricted));
    running.apply(Change::Synced);
    running.sync()?;
    faults.lists();
    let sets = Set::ALL.into_iter().filter(|set| !set.is_dynamic()).count();
    for round in 0..3 {
        ns.nft(&format!("add table ip theirs-{round}"))?;
        assert!(!running.check(later())?);
        assert_eq!(faults.lists(), 2 * (5 + sets), "round {round}");
    }
    Ok(())
}

/// What the agent does once a second, wherever others can change its tables and where they cannot.
#[test]
fn nothing_is_listed_without_foreign_commits() -> Result<()> {
    for ownership in [Ownership::Own, Ownership::Share] {
        let ns = Netns::new()?;
        let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
        let mut running = Dataplane::with_kernel(kernel, Options::default(), NODE, ownership)?;
        running.apply_all(some_cluster());
        running.apply(Change::Synced);
        running.sync()?;
        assert!(faults.lists() > 0, "a start looks at what there is");
        for _ in 0..3 {
            assert!(!running.check(later())?);
            assert!(running.sync()?.is_none());
        }
        assert_eq!(faults.lists(), 0, "{ownership:?}");
        ns.nft("add table ip theirs")?;
        assert!(!running.check(later())?);
        assert!(faults.lists() > 0, "{ownership:?}: another process wrote");
        assert!(running.sync()?.is_none());
        assert!(!running.check(later())?);
        assert_eq!(faults.lists(), 0, "{ownership:?}: nobody wrote since");
    }
    Ok(())
}

#[test]
fn foreign_commits_to_other_tables_list_nothing_of_owned_tables() -> Result<()> {
    let ns = Netns::new()?;
    let mut running = owner(&ns)?;
    running.sync()?;
    for n in 0..3 {
        ns.nft(&format!("add table ip theirs{n}"))?;
        assert!(!running.check(later())?);
        ns.nft(&format!("delete table ip theirs{n}"))?;
        running.apply(Change::ServiceGone(service(n).name));
        let report = running.sync()?.expect("something to write");
        assert_eq!(report.repaired, 0);
        assert_eq!(report.generation, ns.nft_generation()?);
    }
    Ok(())
}

#[test]
fn the_next_agent_takes_the_tables_over_and_writes_nothing_else() -> Result<()> {
    let ns = Netns::new()?;
    let mut first = owner(&ns)?;
    first.sync()?;
    let wanted = ns.ruleset()?;
    let owned = first.snapshot().is_owner;
    let mut second = owner(&ns)?;
    if owned {
        let error = second.sync().expect_err("they belong to the first").to_string();
        assert!(error.contains("belongs to another process"), "{error}");
    }
    drop(first);
    let report = sync_after(&mut second)?;
    assert_eq!(report.map(|r| (r.messages, r.added, r.deleted)), owned.then_some((2, 0, 0)));
    assert_eq!(second.snapshot().is_owner, owned);
    assert_eq!(ns.ruleset()?, wanted);
    Ok(())
}

#[test]
fn start_repairs_changes_to_tables_without_an_owner() -> Result<()> {
    for damage in [
        "flush map ip shunt service-ips",
        "delete table ip6 shunt",
        // The kernel adds no base chain behind a message that takes the table over.
        "flush chain ip shunt nat-prerouting; delete chain ip shunt nat-prerouting",
        "flush chain ip shunt nat-postrouting; delete chain ip shunt nat-postrouting; \
         add chain ip shunt nat-postrouting { type nat hook postrouting priority 107; }",
    ] {
        let ns = Netns::new()?;
        owner(&ns)?.sync()?;
        let wanted = ns.ruleset()?;
        // The socket of the owner may be open for a moment longer: see `sync_after`.
        let start = Instant::now();
        while ns.nft(damage).is_err() {
            ensure!(start.elapsed() < Duration::from_secs(10), "{damage}");
        }
        let mut next = owner(&ns)?;
        sync_after(&mut next)?;
        assert_eq!(ns.ruleset()?, wanted, "{damage}");
        assert_eq!(next.snapshot().is_owner, kernel_can()?);
    }
    Ok(())
}

#[test]
fn tables_without_an_owner_are_replaced_in_one_transaction_and_clients_stay() -> Result<()> {
    let ns = Netns::new()?;
    let mut changes = some_cluster();
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(600);
    changes.push(Change::service(sticky));
    let mut shared = dataplane(&ns, changes.clone())?;
    shared.sync()?;
    assert_eq!(flags(&ns)?, [Some(0); 2]);
    let backend = "10.244.0.100 . 8080";
    ns.nft(&format!(
        "add element ip shunt affinity {{ 192.0.2.7 . 10.96.0.1 . tcp . 80 timeout 600s : {backend} }}
         add element ip shunt affinity {{ 192.0.2.8 . 10.96.0.1 . tcp . 80 timeout 600s : 10.1.1.1 . 1 }}"
    ))?;
    drop(shared);
    let generation = ns.nft_generation()?;
    let mut running = owner(&ns)?;
    running.apply_all(changes);
    running.sync()?;
    if running.snapshot().is_owner {
        assert_eq!(ns.nft_generation()?, generation + 1);
        assert_eq!(flags(&ns)?, [Some(OWNED); 2]);
    }
    let learned = ns.output("nft", &["list", "map", "ip", "shunt", "affinity"])?;
    assert!(learned.contains("192.0.2.7 . 10.96.0.1 . tcp . 80"), "{learned}");
    assert!(learned.contains(backend), "{learned}");
    // Its backend does not exist any more.
    assert!(!learned.contains("192.0.2.8"), "{learned}");
    Ok(())
}

#[test]
fn a_process_that_ends_leaves_its_tables_to_be_owned() -> Result<()> {
    let ns = Netns::new()?;
    let open = || {
        let open = || Ok(Dataplane::open(Options::default(), NODE, Ownership::Leave)?);
        let mut dataplane = ns.run(open)?;
        dataplane.apply_all(some_cluster());
        dataplane.apply(Change::Synced);
        anyhow::Ok(dataplane)
    };
    open()?.sync()?;
    let generation = ns.nft_generation()?;
    assert_eq!(sync_after(&mut open()?)?, None);
    assert_eq!(ns.nft_generation()?, generation);
    // One that stays takes them over without replacing them.
    let report = sync_after(&mut owner(&ns)?)?;
    assert_eq!(report.map(|r| (r.messages, r.added)), kernel_can()?.then_some((2, 0)));
    Ok(())
}

#[test]
fn a_socket_that_is_lost_is_opened_anew() -> Result<()> {
    let ns = Netns::new()?;
    let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
    let mut running = Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
    running.apply_all(some_cluster());
    running.apply(Change::Synced);
    running.sync()?;
    let wanted = ns.ruleset()?;
    let owned = running.snapshot().is_owner;
    faults.lose_the_socket();
    running.apply(Change::service(service(900)));
    let report = ns.run(|| sync_after(&mut running))?.expect("something to write");
    assert_eq!((report.repaired, report.deleted), (0, 0));
    assert_eq!(running.snapshot().is_owner, owned);
    running.apply(Change::ServiceGone(service(900).name));
    running.sync()?;
    assert_eq!(ns.ruleset()?, wanted);
    Ok(())
}

#[test]
fn a_kernel_that_does_not_know_the_flags_gets_plain_tables() -> Result<()> {
    for errno in [Errno::EOPNOTSUPP, Errno::EINVAL] {
        let ns = Netns::new()?;
        let (faults, kernel) = Faults::new(ns.run(|| Ok(Socket::open()?))?);
        let mut dataplane =
            Dataplane::with_kernel(kernel, Options::default(), NODE, Ownership::Own)?;
        dataplane.apply_all(some_cluster());
        dataplane.apply(Change::Synced);
        // Once for each family: behind these, the tables come without flags.
        let left = AtomicUsize::new(2);
        faults.refuse(move |refusal| {
            let is_table = refusal.operation == "add table";
            let refused = is_table && left.load(Ordering::Relaxed) > 0;
            left.fetch_sub(usize::from(refused), Ordering::Relaxed);
            refused.then_some(errno)
        });
        dataplane.sync()?;
        assert_eq!(faults.commits(), 2);
        assert_eq!(flags(&ns)?, [Some(0); 2]);
        assert_eq!(dataplane.snapshot().quarantined.len(), 0);
        // It is not tried again.
        dataplane.apply(Change::service(service(77)));
        dataplane.sync()?;
        assert_eq!(faults.commits(), 1);
    }
    Ok(())
}
