//! Changes become rules at once, and nothing else does.

use anyhow::Result;
use shunt_fake_apiserver::{Api, Case, Key, Kind, both};
use shunt_testbed::{Host, Node};

use crate::world::{World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    both![
        endpoints_come_and_go,
        services_come_move_and_go,
        slices_may_come_before_their_service_and_after_it,
        a_list_without_changes_writes_nothing,
    ]
}

fn endpoints_come_and_go(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let lab = &world.lab;
    let _agent = world.start()?;
    let steps: [&[&Host]; 5] = [
        &[&lab.pod1],
        &[&lab.pod1, &lab.pod2],
        &[&lab.pod2, &lab.pod3],
        &[&lab.pod3, &lab.pod2, &lab.pod1],
        &[&lab.pod3],
    ];
    for pods in steps {
        world.put_slices("web", pods)?;
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        world.assert_web_becomes(&names);
    }
    world.put_slices("web", &[])?;
    lab.from(&lab.client).tcp("10.96.0.10:80").eventually().refused();
    Ok(())
}

fn services_come_move_and_go(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    let client = world.lab.from(&world.lab.client);
    world.put_slices("new", &[&world.lab.pod2])?;
    world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-2"]);
    // An address cannot be changed, so it is another Service of this name.
    world.api.delete(&Key::new(Kind::Service, "new"))?;
    world.api.put(cluster_ip_service("new", "10.96.0.31"))?;
    client.tcp("10.96.0.31:80").eventually().reaches(&["pod-2"]);
    world.assert_gone(&["10.96.0.30:80"]);
    world.delete("new")?;
    world.assert_gone(&["10.96.0.31:80"]);
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}

fn slices_may_come_before_their_service_and_after_it(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let _agent = world.start()?;
    let client = world.lab.from(&world.lab.client);
    world.api.put(cluster_ip_service("after", "10.96.0.30"))?;
    client.tcp("10.96.0.30:80").eventually().refused();
    world.put_slices("after", &[&world.lab.pod1])?;
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);
    world.put_slices("before", &[&world.lab.pod2])?;
    world.api.put(cluster_ip_service("before", "10.96.0.31"))?;
    client.tcp("10.96.0.31:80").eventually().reaches(&["pod-2"]);
    Ok(())
}

fn a_list_without_changes_writes_nothing(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.put_slices("new", &[&world.lab.pod2])?;
    let agent = world.start()?;
    // So that what is known of Services and slices is older than what the server forgets.
    world.api.put(Node::of(&world.lab.node2))?;
    let generation = world.generation()?;
    world.api.forget()?;
    agent.wait_for_log(&["resource version expired for services"])?;
    agent.wait_for_log(&["resource version expired for endpointslices"])?;
    world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
    world.lab.from(&world.lab.client).tcp("10.96.0.30:80").eventually().reaches(&["pod-2"]);
    assert_eq!(world.generation()?, generation + 1, "only the new Service is written");
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    Ok(())
}
