//! With an API server as source.

use std::time::SystemTime;

use anyhow::Result;
use shunt_fake_apiserver::{Kind, Kubeconfig, Standin, TOKEN};
use shunt_testbed::{Agent, Node, Topology};

use crate::world::{SHUNT, http_service};

#[test]
fn what_a_trigger_took_is_measured_once_and_broken_watches_are_counted() -> Result<()> {
    let lab = Topology::new()?;
    let api = lab.node.run(Standin::start_plain)?;
    let kubeconfig = Kubeconfig::new(&format!("http://{}", api.address()))?.token(TOKEN)?;
    let agent = Agent::builder(SHUNT, &lab.node).arg("--kubeconfig");
    let agent = agent.arg(kubeconfig.path().display().to_string()).spawn()?;
    api.put(&Node::of(&lab.node).to_string())?;
    api.put(&http_service("web", &["10.96.0.10"]).to_string())?;
    agent.wait_ready()?;
    let name = "kubeproxy_network_programming_duration_seconds_count";
    let (v4, v6) = (&[("ip_family", "IPv4")], &[("ip_family", "IPv6")]);
    assert_eq!(agent.scrape()?.value(name, v4), Some(0.0));

    api.wait_for_watch(Kind::EndpointSlice)?;
    // Later than the start of the agent in any case. What lies ahead counts as no time.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() + 1;
    let slice = |endpoint: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata:\n  name: web-1\n  namespace: default\n  \
             labels: {{kubernetes.io/service-name: web}}\n  \
             annotations: {{endpoints.kubernetes.io/last-change-trigger-time: {:?}}}\n\
             ports: [{{name: http, port: 8080, protocol: TCP}}]\n\
             endpoints: [{{addresses: [{endpoint}], conditions: {{ready: true}}}}]\n",
            jiff::Timestamp::from_second(now as i64)
                .map(|time| time.to_string())
                .unwrap_or_default()
        )
    };
    api.put(&slice("10.244.0.7"))?;
    agent.wait_for_sample(name, v4, |it| it == 1.0)?;
    api.put(&slice("10.244.0.8"))?;
    let scraped = agent.wait_for_sample(name, v4, |it| it == 2.0)?;
    assert_eq!(scraped.value(name, v6), Some(0.0));

    let (restarts, of_services) = ("shunt_watch_restarts_total", &[("resource", "services")]);
    // A rate needs the value before the first restart.
    assert_eq!(scraped.value(restarts, of_services), Some(0.0));
    api.break_watches(Kind::Service)?;
    agent.wait_for_sample(restarts, of_services, |it| it >= 1.0).map(drop)
}
