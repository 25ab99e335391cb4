//! `shunt.dev/load-balancing` with more endpoints than hash tables take.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use serde_json::Value;
use shunt_testbed::{EndpointSlice, Protocol, Service, eventually};

use crate::world::{SHUNT, World, status_text};

/// A slice of the Service "many" with its ports and so many endpoints.
fn many_endpoints(ports: u16, count: u16) -> EndpointSlice {
    let slice = (1..=ports).fold(EndpointSlice::v4("many"), |slice, port| {
        slice.port(&format!("port-{port}"), Protocol::Tcp, port)
    });
    let address = |n: u16| Ipv4Addr::from(0x0af4_4000 + u32::from(n)).to_string();
    (1..=count).fold(slice, |slice, n| slice.endpoint(&address(n), "conditions: {ready: true}"))
}

fn many_ports(ports: u16) -> Service {
    let service = Service::new("many")
        .cluster_ips(&["10.96.0.77"])
        .metadata("annotations: {shunt.dev/load-balancing: source-hash}");
    (1..=ports)
        .fold(service, |service, port| service.port(&format!("port-{port}"), Protocol::Tcp, port))
}

/// Waits until `shunt services` shows this kind of load balancing and this state of all frontends.
fn wait_for(world: &World, balancing: &str, state: &str) -> Result<()> {
    let words = ["services", "default/many", "--output=json"];
    eventually(format_args!("{balancing}, {state}"), || {
        let shown: Value = serde_json::from_str(&world.lab.node.output(SHUNT, &words)?)?;
        let Some(frontends) = shown["services"][0]["frontends"].as_array() else { return Ok(None) };
        let is_so = |it: &Value| it["loadBalancing"] == balancing && it["state"] == state;
        Ok((!frontends.is_empty() && frontends.iter().all(is_so)).then_some(()))
    })
}

/// 500 tables of 201 endpoints would have 125 500 slots.
#[test]
fn tables_without_room_for_all_endpoints_are_left_out_and_named() -> Result<()> {
    const WHAT: &str = "would need more than 100000 elements";
    let world = World::new()?;
    world.manifests.write("web.yaml", many_ports(500))?;
    world.manifests.write("slices.yaml", many_endpoints(500, 201))?;
    let agent = world.start()?;
    wait_for(&world, "random", "too-many-elements")?;
    let status = status_text(&world.lab.node)?;
    let warning = format!("WARNING  Service default/many: hash tables or weights {WHAT}");
    ensure!(status.contains(&warning), "{status}");

    // With fewer endpoints there is room: 127 slots each.
    world.manifests.write("slices.yaml", many_endpoints(500, 100))?;
    wait_for(&world, "source-hash", "ok")?;
    let log = agent.log();
    assert_eq!(log.matches(WHAT).count(), 1, "{log}");
    Ok(())
}
