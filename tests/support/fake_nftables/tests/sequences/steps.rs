//! Each fault at each call of a short life, one at a time.

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use shunt::dataplane::Ownership;
use shunt_core::model::{Change, Family, Kind};
use shunt_core::plan::Options;
use shunt_fake_nftables::{Ipv6, service, slice};

use crate::trouble::Trouble;
use crate::world::World;
use crate::{Round, Step};

/// A start, what clients learn, a Service that loses an endpoint and one that goes, chains that
/// nobody needs any more, another mark, and a restart.
fn life() -> Vec<Step> {
    let mut sticky = service(1);
    sticky.affinity_seconds = Some(10_800);
    let mut start = vec![Change::service(sticky), Change::service(service(2))];
    start.push(Change::slice(slice(2, Family::V4, &[21])));
    start.extend(Family::ALL.map(|family| Change::slice(slice(1, family, &[11, 12]))));
    vec![
        Step::Changes(start),
        Step::Learn(0, 7),
        Step::Changes(vec![
            Change::slice(slice(1, Family::V4, &[12])),
            Change::Gone(Kind::Service, service(2).name),
        ]),
        Step::Tidy,
        Step::Configure(Options { masquerade_bit: 3, ..Options::default() }),
        Step::Restart(Ownership::Own),
    ]
}

#[test]
fn no_fault_at_any_call_is_for_long() -> Result<()> {
    let faults = [
        Trouble::Killed { done: false },
        Trouble::Killed { done: true },
        Trouble::Lost,
        Trouble::Send(Errno::ENOBUFS),
        Trouble::Stale,
        Trouble::Interrupted,
        Trouble::Disconnected,
    ];
    for step in 0..life().len() {
        for fault in &faults {
            for call in 0.. {
                let came = live(step, fault, call);
                if !came.with_context(|| format!("{fault:?} at call {call} of step {step}"))? {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Lives with a fault at one call of one step. False if there are not that many calls.
fn live(at: usize, fault: &Trouble, call: usize) -> Result<bool> {
    let mut world = World::new(Ipv6::Present);
    for (number, step) in life().into_iter().enumerate() {
        if number == at {
            let mut troubles = vec![Trouble::Nothing; call];
            troubles.push(fault.clone());
            if !world.round(&Round { step, troubles })? {
                return Ok(false);
            }
        } else {
            world.calm(&step).with_context(|| format!("step {number}"))?;
        }
    }
    world.finish(false)?;
    Ok(true)
}
