//! When connections to gone endpoints are reset, and what follows if the kernel refuses it.

use std::time::Duration;

use nfnetlink::nft::{Error, Refusal, TableFamily};
use nix::errno::Errno;
use shunt_core::model::{Change, Family, GONE_FOR, SETTLE};
use shunt_core::plan::{GONE_ENDPOINTS, Options, TABLE};
use shunt_fake_nftables::slice;

use super::world::{What, World, cluster, endpoints};

const SECOND: Duration = Duration::from_secs(1);

/// Two endpoints, of which the first terminates and vanishes; returns what happened until then.
fn with_gone_endpoint() -> World {
    let mut world = World::new();
    world.configure(Options { reset_gone_endpoints: true, ..Options::default() });
    let mut dying = slice(1, Family::V4, &[11, 12]);
    dying.endpoints[0].terminating = true;
    world.send(cluster(&[11, 12]));
    world.send(vec![Change::slice(dying)]);
    world.commit(endpoints(&[12]));
    world
}

fn resets(world: &World) -> bool {
    let listing = world.listing();
    listing.chains.iter().any(|chain| chain.name == "reset-prerouting")
}

#[test]
fn resets_begin_and_end_in_time_without_another_change() {
    let mut world = with_gone_endpoint();
    assert!(!resets(&world));
    world.pass(SETTLE);
    assert!(resets(&world));
    assert_eq!(world.snapshot().gone_endpoints, [1, 0]);
    world.pass(GONE_FOR - SECOND);
    assert!(resets(&world));
    world.pass(SECOND);
    assert!(!resets(&world));
    assert_eq!(world.snapshot().gone_endpoints, [0, 0]);
    let log = world.log();
    let times: Vec<Duration> = log.iter().map(|logged| logged.at).collect();
    assert_eq!(times, [SETTLE, SETTLE + GONE_FOR], "{log:?}");
    world.pass(GONE_FOR);
    assert_eq!(world.events(), []);
}

#[test]
fn services_go_on_if_the_kernel_refuses_resets() {
    let mut world = with_gone_endpoint();
    world.on_commit(|batch| {
        let name = GONE_ENDPOINTS.as_bytes();
        batch.bytes().windows(name.len()).any(|bytes| bytes == name).then(|| {
            Error::Refused(vec![Refusal {
                errno: Errno::EOPNOTSUPP,
                explanation: None,
                operation: "add set",
                family: Some(TableFamily::Ip),
                table: TABLE.to_owned(),
                object: GONE_ENDPOINTS.to_owned(),
                rule: None,
                keys: Vec::new(),
            }])
        })
    });
    world.pass(SETTLE);
    assert!(!resets(&world));
    world.send(endpoints(&[12, 13]));
    world.pass(SECOND);
    let events = world.events();
    assert!(matches!(events[..], [What::Unchanged, What::Wrote { .. }]), "{events:?}");
    assert_eq!(world.backlog.oldest(), None);
}
