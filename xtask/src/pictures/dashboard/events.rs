//! What happens to the cluster while Prometheus watches.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shunt_testbed::{EndpointSlice, Node, Protocol, Service};

use super::cluster::{CART, CHECKOUT, Control, DNS, Lab, fill, slice};
use crate::pictures::commands::DEAD;
use crate::pictures::load::{Load, load};

/// A Service whose connections stay on their node.
const EDGE: Load = load("shop", "edge", "10.96.0.70", 443, 0);
/// A node that the autoscaler is about to remove.
const DOOMED: &str = "taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]";
/// A change of another process to the tables, which changes nothing for packets.
const DRIFT: &str = "add rule ip shunt services counter";

/// The seconds before the picture. The rate of a counter near zero is not exact, which distorts
/// quantiles.
pub(super) const LEAD: u32 = 12;

/// One change.
type Change = fn(&Lab, &mut Control) -> Result<()>;

/// All changes, with the second of the picture.
const EVENTS: [(u32, Change); 20] = [
    (2, |lab, control| control.api.put(&edge(lab, 1))),
    (14, |lab, control| control.api.put(&slice(&DNS, &lab.pods()[..3]))),
    (18, |lab, control| control.api.put(&slice(&CHECKOUT, &lab.pods()[..0]))),
    (24, |_, control| control.api.put(&rival())),
    (30, |lab, _| lab.topology.pod2.nft(DEAD)),
    (38, |lab, control| control.api.put(&slice(&CHECKOUT, &lab.pods()[2..]))),
    (44, |_, control| control.api.break_watches()),
    (48, |lab, control| control.api.put(&slice(&DNS, &lab.pods()[1..]))),
    (52, |lab, control| control.api.put(&edge(lab, 3))),
    (58, |lab, _| lab.topology.pod2.nft("delete table ip dead")),
    (62, |lab, control| control.configure(&lab.topology.node, "nftables: {syncPeriod: 20s}\n")),
    (68, |lab, _| lab.topology.node2.nft(DRIFT)),
    (74, |lab, control| control.configure(&lab.topology.node2, "nftables: {syncPeriod: soon}\n")),
    (78, |lab, control| control.api.put(&slice(&DNS, &lab.pods()[..3]))),
    (80, |lab, control| control.configure(&lab.topology.node2, "")),
    (84, |lab, control| control.api.put(&Node::of(&lab.topology.node2).spec(DOOMED).to_string())),
    (88, |_, control| control.api.break_watches()),
    (98, |lab, control| control.api.put(&Node::of(&lab.topology.node2).to_string())),
    (104, |lab, control| control.api.put(&slice(&DNS, &lab.pods()))),
    (108, |lab, control| control.api.put(&edge(lab, 1))),
];

/// Carries out the events. Endpoints of one Service are replaced all the time.
pub(super) fn happen(lab: &Lab, control: &mut Control, seconds: u32) -> Result<()> {
    let began = Instant::now();
    for second in 0..seconds {
        let due = began + Duration::from_secs(second.into());
        thread::sleep(due.saturating_duration_since(Instant::now()));
        for (_, change) in EVENTS.iter().filter(|(at, _)| *at + LEAD == second) {
            change(lab, control).with_context(|| format!("the event of second {second}"))?;
        }
        // A pod ends, another one starts; at times several do.
        let is_busy = (50..80).contains(&second);
        for part in 0..if is_busy { 3 } else { 1 } {
            let without = usize::try_from(second + part)? % 8;
            let pods = lab.pods().into_iter().enumerate();
            let left: Vec<_> = pods.filter(|(at, _)| *at != without).map(|(_, pod)| pod).collect();
            control.api.put(&slice(&CART, &left))?;
        }
    }
    Ok(())
}

/// Returns a Service of both families with policy Local, and endpoints on the first nodes of these pods only.
fn edge(lab: &Lab, pods: usize) -> String {
    let service = EDGE
        .service()
        .cluster_ips(&[EDGE.address, "fd00:96::70"])
        .load_balancer(&["203.0.113.10"])
        .spec("externalTrafficPolicy: Local");
    let slices = [EndpointSlice::v4(EDGE.name), EndpointSlice::v6(EDGE.name)];
    let slices = slices.map(|empty| fill(empty, &EDGE, &lab.pods()[..pods]));
    format!("{service}{}", slices.concat())
}

/// Returns a Service that wants the address of another one.
fn rival() -> String {
    let service = Service::new("edge-2").namespace("shop").cluster_ips(&["10.96.0.71"]);
    let service = service.port("http", Protocol::Tcp, 443).load_balancer(&["203.0.113.10"]);
    service.to_string()
}
