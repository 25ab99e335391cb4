//! The directory of manifests while the agent runs: files come, change and go.

use anyhow::Result;

use crate::world::{World, cluster_ip_service, manifest, slices};

const WEB: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];
const NEW: [&str; 2] = ["10.96.0.30:80", "[fd00:96::30]:80"];

fn new_service() -> shunt_testbed::Service {
    cluster_ip_service("new", &["10.96.0.30", "fd00:96::30"])
}

#[test]
fn a_file_is_added_and_removed() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let client = world.lab.from(&world.lab.client);
    for to in NEW {
        client.tcp(to).unhandled();
    }
    world.manifests.write("new.yaml", manifest(&new_service(), "new", &[&world.lab.pod2]))?;
    for to in NEW {
        client.tcp(to).eventually().reaches(&["pod-2"]);
    }
    world.manifests.remove("new.yaml")?;
    for to in NEW {
        client.tcp(to).eventually().unhandled();
    }
    world.assert_web_works();
    Ok(())
}

#[test]
fn a_replaced_file_changes_endpoints() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let write = |pods: &[&shunt_testbed::Host]| {
        world.manifests.write("new.yaml", manifest(&new_service(), "new", pods))
    };
    write(&[&lab.pod1])?;
    let _agent = world.start()?;
    let steps: [&[&shunt_testbed::Host]; 6] = [
        &[&lab.pod1],
        &[&lab.pod1, &lab.pod2],
        &[&lab.pod2, &lab.pod3],
        &[&lab.pod3, &lab.pod2, &lab.pod1],
        &[],
        &[&lab.pod3],
    ];
    for pods in steps {
        write(pods)?;
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        for to in NEW {
            let probe = lab.from(&lab.client).tcp(to).eventually();
            if names.is_empty() {
                probe.refused();
            } else {
                drop(probe.reaches(&names));
            }
        }
    }
    Ok(())
}

#[test]
fn a_service_moves_to_another_address() -> Result<()> {
    let world = World::new()?;
    let client = world.lab.from(&world.lab.client);
    world.manifests.write("slices.yaml", slices("new", &[&world.lab.pod1]))?;
    world.manifests.write("new.yaml", new_service())?;
    let _agent = world.start()?;
    client.tcp("10.96.0.30:80").reaches(&["pod-1"]);
    let moved = cluster_ip_service("new", &["10.96.0.31", "fd00:96::31"]);
    world.manifests.write("new.yaml", moved)?;
    client.tcp("10.96.0.31:80").eventually().reaches(&["pod-1"]);
    client.tcp("[fd00:96::31]:80").reaches(&["pod-1"]);
    for to in NEW {
        client.tcp(to).unhandled();
    }
    Ok(())
}

#[test]
fn slices_may_come_before_their_service_and_after_it() -> Result<()> {
    let world = World::new()?;
    let client = world.lab.from(&world.lab.client);
    let _agent = world.start()?;
    world.manifests.write("slices.yaml", slices("new", &[&world.lab.pod1]))?;
    world.manifests.write("new.yaml", new_service())?;
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-1"]);
    world.manifests.remove("slices.yaml")?;
    client.tcp("10.96.0.30:80").eventually().refused();
    world.manifests.write("slices.yaml", slices("new", &[&world.lab.pod2]))?;
    client.tcp("10.96.0.30:80").eventually().reaches(&["pod-2"]);
    Ok(())
}

#[test]
fn a_broken_file_keeps_its_last_good_content() -> Result<()> {
    let world = World::with_web()?;
    let write = |pod| world.manifests.write("new.yaml", manifest(&new_service(), "new", &[pod]));
    write(&world.lab.pod1)?;
    let agent = world.start()?;
    world.manifests.write("new.yaml", "kind: Service\nspec: {ports: [\n  broken")?;
    agent.wait_for_log(&["new.yaml"])?;
    // Something later that is applied shows that the broken file has been dealt with.
    let marker = cluster_ip_service("marker", &["10.96.0.99"]);
    world.manifests.write("marker.yaml", manifest(&marker, "marker", &[&world.lab.pod3]))?;
    let client = world.lab.from(&world.lab.client);
    client.tcp("10.96.0.99:80").eventually().reaches(&["pod-3"]);
    for to in NEW {
        client.tcp(to).reaches(&["pod-1"]);
    }
    world.assert_web_works();
    write(&world.lab.pod2)?;
    for to in NEW {
        client.tcp(to).eventually().reaches(&["pod-2"]);
    }
    Ok(())
}

#[test]
fn a_single_file_can_stand_for_the_directory() -> Result<()> {
    let world = World::with_web()?;
    let file = world.manifests.path().join("web.yaml");
    let agent = shunt_testbed::Agent::builder(crate::world::SHUNT, &world.lab.node).manifests(file);
    let _agent = agent.start()?;
    for to in WEB {
        let reached = world.lab.from(&world.lab.node).tcp(to).reaches(&["pod-1", "pod-2", "pod-3"]);
        reached.source_masqueraded();
    }
    Ok(())
}
