//! What an API server lists becomes rules.

use anyhow::{Result, bail, ensure};
use serde_json::json;
use shunt_fake_apiserver::{Api, Case, Kind, Verb, both, standin_only};
use shunt_testbed::Protocol;

use crate::world::{WEB, World, cluster_ip_service, slices};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![
        every_kind_of_frontend_works,
        headless_services_and_those_of_another_proxy_are_left_alone,
        once_programs_and_ends,
        a_restarted_agent_writes_nothing,
    ];
    let alone = standin_only![
        ten_thousand_objects_come_in_pages,
        only_what_matters_is_asked_for,
        a_server_without_service_cidrs_will_do,
        a_server_that_cannot_select_services_will_do,
        objects_may_lack_everything,
    ];
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

fn a_restarted_agent_writes_nothing(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.start()?.stop()?;
    let generation = world.generation()?;
    world.start()?.kill()?;
    world.start()?.stop()?;
    assert_eq!(world.generation()?, generation);
    world.put_slices("web", &[&world.lab.pod2])?;
    let _agent = world.start()?;
    world.assert_web(&["pod-2"]);
    assert_eq!(world.generation()?, generation + 1);
    Ok(())
}

fn ten_thousand_objects_come_in_pages(api: Api) -> Result<()> {
    const SERVICES: usize = 10_000;
    let world = World::with_web(api)?;
    // What is in the cache comes at once.
    world.standin()?.configure(|settings| settings.cache = false);
    let ip = |number: usize| format!("10.96.{}.{}", 100 + number / 250, 1 + number % 250);
    for number in 0..SERVICES {
        world.standin()?.put_object(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("many-{number:05}")},
            "spec": {
                "type": "ClusterIP", "clusterIP": ip(number), "clusterIPs": [ip(number)],
                "ports": [{"name": "tcp", "protocol": "TCP", "port": 80}],
            },
        }))?;
    }
    let last = SERVICES - 1;
    world.api.put(slices(&format!("many-{last:05}"), &[&world.lab.pod3]))?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    let client = world.lab.from(&world.lab.client);
    client.tcp(format!("{}:80", ip(last))).reaches(&["pod-3"]);
    for number in [0, 249, 250, 4_999, 9_998] {
        client.tcp(format!("{}:80", ip(number))).refused();
    }
    let requests = world.standin()?.requests();
    let mut pages = requests
        .iter()
        .filter(|request| request.kind == Some(Kind::Service) && request.verb == Verb::List);
    assert!(pages.clone().count() > 1, "the list came at once");
    assert!(pages.all(|page| !page.parameter("limit").is_empty()), "{requests:#?}");
    Ok(())
}

fn only_what_matters_is_asked_for(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    for (kind, label, field) in [
        (Kind::Service, "!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"),
        (Kind::EndpointSlice, "!service.kubernetes.io/headless", ""),
        (Kind::Node, "", "metadata.name=node-1"),
        (Kind::ServiceCidr, "", ""),
    ] {
        standin.wait_for_watch(kind)?;
        let mut requests = standin.requests();
        requests.retain(|request| request.kind == Some(kind));
        let [list, watch] = &requests[..] else { bail!("of {kind}: {requests:#?}") };
        assert_eq!((list.verb, watch.verb), (Verb::List, Verb::Watch));
        for request in [list, watch] {
            assert_eq!(request.parameter("labelSelector"), label, "{request:?}");
            assert_eq!(request.parameter("fieldSelector"), field, "{request:?}");
        }
    }
    agent.stop()
}

fn a_server_without_service_cidrs_will_do(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.standin()?.configure(|settings| settings.service_cidrs = false);
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    // No ServiceCIDR names it.
    world.lab.from(&world.lab.client).tcp("10.96.0.77:80").unhandled();
    Ok(())
}

fn a_server_that_cannot_select_services_will_do(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    world.api.put(cluster_ip_service("headless", "None"))?;
    world.put_slices("headless", &[&world.lab.pod1])?;
    world.standin()?.configure(|settings| settings.service_fields = false);
    let _agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    world.mark()
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
    // Protobuf has no wrong types that could be named.
    api.configure(|settings| settings.protobuf = false);
    odd.iter().try_for_each(|object| api.put(object))?;
    let agent = world.start()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    // As events too, and with fields of wrong types; each is named.
    odd.iter().try_for_each(|object| api.put(object))?;
    api.put("{apiVersion: v1, kind: Service, metadata: {name: typed}, spec: {ports: many}}")?;
    agent.wait_for_log(&["default/typed", "ports"])?;
    world.mark()?;
    world.assert_web(&["pod-1", "pod-2", "pod-3"]);
    for to in WEB {
        world.lab.from(&world.lab.pod1).udp(to).reaches(&["pod-1", "pod-2", "pod-3"]);
    }
    Ok(())
}
