//! What an API server lists becomes rules.

use anyhow::{Result, ensure};
use shunt_fake_apiserver::{Api, Case, both, standin_only};
use shunt_testbed::Protocol;

use crate::world::{WEB, World, cluster_ip_service};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![
        every_kind_of_frontend_works,
        headless_services_and_those_of_another_proxy_are_left_alone,
        once_programs_and_ends,
    ];
    let alone = standin_only![objects_may_lack_everything,];
    [both, alone].concat()
}

fn every_kind_of_frontend_works(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    let frontends = [
        "10.96.0.10:80",
        "[fd00:96::10]:80",
        "192.0.2.10:30080",
        "[2001:db8:2::10]:30080",
        "198.51.100.10:80",
        "[2001:db8:51::10]:80",
        "203.0.113.10:80",
        "[2001:db8:113::10]:80",
    ];
    for to in frontends {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            world.lab.from(&world.lab.client).probe(protocol, to).reaches(&pods);
        }
    }
    for to in &frontends[..2] {
        world.lab.from(&world.lab.pod2).tcp(to).reaches(&pods);
    }
    Ok(())
}

fn headless_services_and_those_of_another_proxy_are_left_alone(api: Api) -> Result<()> {
    const LABEL: &str = "service.kubernetes.io/service-proxy-name";
    let world = World::with_web(api)?;
    let ours = || cluster_ip_service("other", "10.96.0.20");
    let theirs = || ours().label(LABEL, "another-proxy");
    world.api.put(cluster_ip_service("headless", "None"))?;
    world.put_slices("headless", &[&world.lab.pod1])?;
    world.api.put(theirs())?;
    world.put_slices("other", &[&world.lab.pod1])?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    world.assert_gone(&["10.96.0.20:80"]);

    world.api.put(ours())?;
    world.lab.from(&world.lab.client).tcp("10.96.0.20:80").eventually().reaches(&["pod-1"]);
    world.api.put(theirs())?;
    world.assert_gone(&["10.96.0.20:80"]);
    Ok(())
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
