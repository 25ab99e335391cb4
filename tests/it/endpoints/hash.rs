//! `shunt.dev/load-balancing` with more endpoints than hash tables take.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{EndpointSlice, Protocol, Service};

use crate::endpoints::changes::{Changes, READY};
use crate::world::{SHUNT, World, status_text};

/// A slice of the Service "many" with its ports and so many endpoints.
fn many_endpoints(ports: u16, count: u16) -> EndpointSlice {
    let slice = (1..=ports).fold(EndpointSlice::v4("many"), |slice, port| {
        slice.port(&format!("port-{port}"), Protocol::Tcp, port)
    });
    let address = |n: u16| Ipv4Addr::from(0x0af4_4000 + u32::from(n)).to_string();
    (1..=count).fold(slice, |slice, n| slice.endpoint(&address(n), READY))
}

fn many_ports(ports: u16) -> Service {
    let service = Service::new("many")
        .cluster_ips(&["10.96.0.77"])
        .metadata("annotations: {shunt.dev/load-balancing: source-hash}");
    (1..=ports)
        .fold(service, |service, port| service.port(&format!("port-{port}"), Protocol::Tcp, port))
}

/// The kind of load balancing and the state of all frontends, as `shunt services` shows them.
fn shown(world: &World) -> Result<BTreeSet<(String, String)>> {
    let words = ["services", "default/many", "--output=json"];
    let shown: Value = serde_json::from_str(&world.lab.node.output(SHUNT, &words)?)?;
    let frontends = shown["services"][0]["frontends"].as_array().context("no frontends")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(frontends.iter().map(|it| (text(&it["loadBalancing"]), text(&it["state"]))).collect())
}

/// 500 tables of 201 endpoints would have 125 500 slots.
#[test]
fn tables_without_room_for_all_endpoints_are_left_out_and_named() -> Result<()> {
    const WHAT: &str = "would need more than 100000 elements";
    let world = World::new()?;
    world.manifests.write("web.yaml", many_ports(500))?;
    world.manifests.write("slices.yaml", many_endpoints(500, 201))?;
    let changes = Changes::start(&world)?;
    changes.settle(&world)?;
    assert_eq!(shown(&world)?, [("random".to_owned(), "too-many-elements".to_owned())].into());
    let status = status_text(&world.lab.node)?;
    let warning = format!("WARNING  Service default/many: hash tables or weights {WHAT}");
    ensure!(status.contains(&warning), "{status}");

    // With fewer endpoints there is room: 127 slots each.
    changes.write(&world, "slices.yaml", many_endpoints(500, 100))?;
    assert_eq!(shown(&world)?, [("source-hash".to_owned(), "ok".to_owned())].into());
    let log = changes.agent().log();
    assert_eq!(log.matches(WHAT).count(), 1, "{log}");
    Ok(())
}
