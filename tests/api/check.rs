//! The lines of `shunt check` that are about the API server.

use anyhow::Result;
use shunt_fake_apiserver::{
    Answer, Api, Case, Fault, Key, Kind, Kubeconfig, Verb, both, standin_only,
};
use shunt_testbed::CheckLines;

use crate::world::{SHUNT, World};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![agent_of_the_chart_may_do_what_it_needs, missing_node_is_a_warning];
    let alone = standin_only![
        missing_permission_is_named_by_its_rule,
        null_is_the_absence_of_a_field,
        answer_without_objects_fails,
        server_that_does_not_answer_fails,
        rejected_credentials_fail,
        cluster_ip_as_the_address_of_the_server_fails,
        unusable_kubeconfig_fails,
    ];
    [both, alone].concat()
}

/// The Service by which pods reach the API server. kube-apiserver makes it by itself.
const KUBERNETES: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\n\
    spec: {clusterIP: 172.30.0.1, clusterIPs: [172.30.0.1], ports: [{name: https, port: 443}]}\n";

/// Runs `shunt check` on the node, with these variables in the environment.
fn check(world: &World, kubeconfig: &Kubeconfig, variables: &[(&str, &str)]) -> Result<CheckLines> {
    let mut command = world.lab.node.command(SHUNT);
    command.args(["check", "--output=json", "--hostname-override=node-1", "--proxy-mode=nftables"]);
    command.arg("--kubeconfig").arg(kubeconfig.path()).envs(variables.iter().copied());
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains('\u{1b}'), "{stderr}");
    CheckLines::read(&output)
}

fn checked(world: &World) -> Result<CheckLines> {
    check(world, &world.kubeconfig, &[])
}

fn agent_of_the_chart_may_do_what_it_needs(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let lines = checked(&world)?;
    lines.has("api-server", "OK", &[&world.gate.address().to_string()]);
    lines.has("api-permissions", "OK", &[]);
    lines.has("api-address", "OK", &["127.0.0.1 is no ClusterIP"]);
    lines.has("node", "OK", &["the Node node-1 exists"]);
    lines.has("node-ports", "OK", &["192.0.2.10, 2001:db8:2::10"]);
    Ok(())
}

fn missing_node_is_a_warning(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.api.delete(&Key::new(Kind::Node, "node-1"))?;
    let lines = checked(&world)?;
    lines.has("node", "WARN", &["the API has no Node node-1", "--hostname-override"]);
    lines.has("node-ports", "SKIP", &["is not known here"]);
    Ok(())
}

fn missing_permission_is_named_by_its_rule(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let standin = world.standin()?;
    let forbidden = |kind| Fault::new(Answer::Status(403)).of(kind);
    for verb in [Verb::List, Verb::Watch] {
        standin.misbehave(forbidden(Kind::EndpointSlice).on(verb));
        let rule =
            "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}";
        checked(&world)?.has("api-permissions", "FAIL", &["EndpointSlice: ", "(403)", rule]);
        standin.behave();
    }
    standin.misbehave(forbidden(Kind::ServiceCidr));
    checked(&world)?.has("api-permissions", "WARN", &["ServiceCIDR: ", "[servicecidrs]"]);
    // Without the Node there are no node ports.
    standin.misbehave(forbidden(Kind::Node));
    let lines = checked(&world)?;
    lines.has("api-permissions", "FAIL", &["ServiceCIDR: ", "[servicecidrs]", "[nodes]"]);
    lines.has("node", "SKIP", &["cannot be listed"]);
    standin.behave();
    // Servers before Kubernetes 1.31 have none.
    standin.misbehave(Fault::new(Answer::Status(404)).of(Kind::ServiceCidr));
    checked(&world)?.has("api-permissions", "OK", &[]);
    Ok(())
}

/// Go writes `null` for an empty list. Other servers have fields that shunt does not know.
fn null_is_the_absence_of_a_field(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let list = |items: &str| format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":{items}}}"#);
    let node = r#"[{"metadata":{"name":"node-1","labels":null},"spec":{"podCIDRs":null,"taints":null},
        "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.10"}],"conditions":null,
        "future":1}}]"#;
    for (kind, items) in [(Kind::Node, node), (Kind::EndpointSlice, "null")] {
        let body = Answer::Body(list(items).into());
        world.standin()?.misbehave(Fault::new(body).on(Verb::List).of(kind));
    }
    let lines = checked(&world)?;
    lines.has("api-permissions", "OK", &[]);
    lines.has("node-ports", "OK", &["192.0.2.10"]);
    Ok(())
}

fn answer_without_objects_fails(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let body = Answer::Body("<html>\u{1b}[31m</html>".into());
    world.standin()?.misbehave(Fault::new(body).on(Verb::List).of(Kind::Node));
    let lines = checked(&world)?;
    lines.has(
        "api-permissions",
        "FAIL",
        &["the API server sent an invalid response: ", "<html>", "(expected value"],
    );
    Ok(())
}

fn server_that_does_not_answer_fails(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.gate.refuse()?;
    let lines = checked(&world)?;
    lines.has("api-server", "FAIL", &["does not answer", "refused", "apiServer"]);
    lines.has("api-address", "SKIP", &[]);
    // Every Pod knows the ClusterIP, even if nothing answers there.
    let lines = check(&world, &world.kubeconfig, &[("KUBERNETES_PORT_443_TCP_ADDR", "127.0.0.1")])?;
    lines.has("api-address", "FAIL", &["127.0.0.1 is the ClusterIP", "apiServer.host"]);
    Ok(())
}

fn rejected_credentials_fail(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.kubeconfig.set_token("nobody")?;
    let lines = checked(&world)?;
    lines.has("api-server", "FAIL", &["rejects the credentials", "(401)"]);
    lines.has("api-permissions", "SKIP", &[]);
    Ok(())
}

/// Rules such as kube-proxy's make the address work, until they are gone.
fn cluster_ip_as_the_address_of_the_server_fails(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.api.put(KUBERNETES)?;
    let gate = world.gate.address();
    for address in ["172.30.0.1", "10.96.0.7"] {
        world.lab.node.nft(&format!(
            "add table ip other\n\
             add chain ip other output {{ type nat hook output priority -100; }}\n\
             add rule ip other output ip daddr {address} tcp dport 443 dnat to {gate}\n"
        ))?;
        let authority = world.api.authority().unwrap_or_default();
        let kubeconfig = Kubeconfig::new(&format!("https://{address}:443"))?
            .authority(&authority)?
            .token_file(shunt_fake_apiserver::TOKEN)?
            .cluster("tls-server-name: 127.0.0.1")?;
        let lines = check(&world, &kubeconfig, &[])?;
        lines.has("api-server", "OK", &["answers"]);
        let what = match address {
            "172.30.0.1" => "172.30.0.1 is the ClusterIP of the Service default/kubernetes",
            _ => "10.96.0.7 is an address of the service CIDR 10.96.0.0/16",
        };
        lines.has("api-address", "FAIL", &[what, "apiServer.host"]);
    }
    Ok(())
}

fn unusable_kubeconfig_fails(api: Api) -> Result<()> {
    let world = World::new(api)?;
    std::fs::write(world.kubeconfig.path(), "apiVersion: v1\nkind: Config\n")?;
    checked(&world)?.has("api-server", "FAIL", &["the kubeconfig cannot be used"]);
    Ok(())
}
