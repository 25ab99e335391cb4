//! What an API server lists becomes rules. The scenarios with kube-apiserver tell which.

use anyhow::{Result, ensure};
use shunt_fake_apiserver::{Api, Case, both, standin_only};
use shunt_testbed::Node;

use crate::world::{WEB, World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![once_programs_and_ends, a_list_without_changes_writes_nothing];
    let alone = standin_only![objects_may_lack_everything];
    [both, alone].concat()
}

fn once_programs_and_ends(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    for agent in [world.agent_by_flags(), world.agent()?] {
        let output = agent.once()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    }
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

/// Objects that no server of ours would take, but that one may have.
fn objects_may_lack_everything(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let odd = [
        "{apiVersion: v1, kind: Service, metadata: {name: bare}}",
        "{apiVersion: v1, kind: Service, metadata: {name: empty}, spec: null, status: null}",
        "{apiVersion: v1, kind: Service, metadata: {name: lists, labels: null},
          spec: {clusterIP: 10.96.0.30, clusterIPs: null, ports: null}}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: bare}}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
          metadata: {name: lists, labels: {kubernetes.io/service-name: web}},
          endpoints: null, ports: null}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
          metadata: {name: inner, labels: {kubernetes.io/service-name: web}},
          endpoints: [{addresses: null, conditions: null}, {}], ports: [{}]}",
        "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: bare}}",
        "{apiVersion: v1, kind: Node, metadata: {name: node-1}}",
    ];
    let api = world.standin()?;
    odd.iter().try_for_each(|object| api.put(object))?;
    let agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    // As events too, and with fields of wrong types; each is named.
    odd.iter().try_for_each(|object| api.put(object))?;
    api.put("{apiVersion: v1, kind: Service, metadata: {name: typed}, spec: {ports: many}}")?;
    agent.wait_for_log(&["default/typed", "spec"])?;
    world.mark()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    for to in WEB {
        world.lab.from(&world.lab.pod1).udp(to).reaches(&["pod-1", "pod-2", "pod-3"]);
    }
    Ok(())
}
