//! Who the agent is to the server, and how it finds it.

use std::fs;

use anyhow::Result;
use shunt_fake_apiserver::{
    Api, Authority, Case, Kubeconfig, Proxy, Standin, TOKEN, both, standin_only,
};

use crate::world::{SHUNT, World, status};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![
        a_client_certificate_will_do,
        a_wrong_authority_is_named,
        no_output_holds_a_secret,
        all_requests_share_one_connection,
    ];
    let alone = standin_only![
        a_server_where_the_agent_was_started_will_do,
        a_new_token_is_read,
        a_token_file_comes_before_a_token,
        a_new_authority_is_read,
        a_proxy_of_the_kubeconfig_or_the_environment_is_used,
        a_proxy_of_the_environment_is_used_in_a_pod,
        a_proxy_is_not_used_where_the_environment_says_so,
        a_proxy_that_refuses_is_named,
        a_server_without_tls_or_http2_will_do,
        a_host_that_is_not_there_is_named,
    ];
    [both, alone].concat()
}

const ALL: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

fn kubeconfig(world: &World) -> Result<Kubeconfig> {
    Kubeconfig::new(&format!("https://{}", world.gate.address()))
}

fn authority(world: &World) -> String {
    world.api.authority().unwrap_or_default()
}

fn a_client_certificate_will_do(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let identity = world.api.client_certificate("system:kube-proxy")?;
    let kubeconfig = kubeconfig(&world)?.authority(&authority(&world))?.certificate(&identity)?;
    let _agent = world.agent_with(&kubeconfig)?.start()?;
    world.assert_web(&ALL);
    Ok(())
}

/// The agent works in the node's namespace, which does not reach the server; but it was started in
/// ours, which does.
fn a_server_where_the_agent_was_started_will_do(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let address = world.standin()?.address();
    let kubeconfig = Kubeconfig::new(&format!("https://{address}"))?;
    let kubeconfig = kubeconfig.authority(&authority(&world))?.token_file(TOKEN)?;
    let _agent = world.agent_with(&kubeconfig)?.start()?;
    world.assert_web(&ALL);
    world.mark()
}

fn a_wrong_authority_is_named(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let kubeconfig = kubeconfig(&world)?.authority(&Authority::new()?.pem())?.token_file(TOKEN)?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    agent.wait_for_log(&["WARN", "cannot reach the API server", "certificate"])?;
    // The right one may come yet.
    kubeconfig.set_authority(&authority(&world))?;
    agent.wait_ready()?;
    world.assert_web(&ALL);
    Ok(())
}

/// Neither at the highest verbosity, nor when the server takes our credentials no longer.
fn no_output_holds_a_secret(api: Api) -> Result<()> {
    const SECRETS: [&str; 2] = [TOKEN, "another-secret-token"];
    let world = World::with_web(api)?;
    let agent = world.agent()?.arg("-v=10").start()?;
    world.assert_web(&ALL);
    world.wait_for_event("Starting")?;
    world.kubeconfig.set_token(SECRETS[1])?;
    // Then all files are read again.
    world.gate.refuse()?;
    agent.wait_for_log(&["WARN", "cannot reach the API server", "refused"])?;
    world.gate.reopen()?;
    agent.wait_for_log(&["WARN", "rejects the agent's credentials", "401"])?;
    let mut outputs = vec![status(&world, &["PROBLEM", "credentials"])?];
    for (port, path) in [(10249, "/metrics"), (10249, "/configz"), (10256, "/healthz")] {
        outputs.push(format!("{:?}", agent.http_get(port, path)?));
    }
    outputs.push(format!("{:?}", world.api.events()?));
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("written");
    let write = format!("--write-config-to={}", file.display());
    outputs.push(format!("{:?}", world.agent()?.arg(write).once()?));
    outputs.push(fs::read_to_string(file)?);
    outputs.push(agent.log());
    for output in outputs {
        let leak = SECRETS.iter().find_map(|secret| output.find(secret));
        let around = |at: usize| output[at.saturating_sub(300)..].chars().take(600).collect();
        assert_eq!(leak.map(around), None::<String>);
    }
    Ok(())
}

/// The file rotates, and the token beside it in the kubeconfig has long expired.
fn a_token_file_comes_before_a_token(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), format!("{TOKEN}\n"))?;
    let user = format!("token: expired, tokenFile: {}", file.path().display());
    let kubeconfig = kubeconfig(&world)?.authority(&authority(&world))?.user(&user)?;
    let _agent = world.agent_with(&kubeconfig)?.start()?;
    world.assert_web(&ALL);
    let standin = world.standin()?;
    standin.set_token("rotated");
    fs::write(file.path(), "rotated\n")?;
    standin.cut();
    world.mark()
}

/// A server that comes back is not the same in all respects: the reason that counts is the last.
fn a_new_token_is_read(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    world.gate.refuse()?;
    agent.wait_for_log(&["WARN", "cannot reach the API server", "refused"])?;
    standin.set_token("another");
    world.gate.reopen()?;
    agent.wait_for_log(&["WARN", "rejects the agent's credentials", "401"])?;
    world.assert_web(&ALL);
    world.kubeconfig.set_token("another")?;
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.mark()?;

    // And when the file is there first.
    world.kubeconfig.set_token("a third")?;
    standin.set_token("a third");
    standin.cut();
    world.mark()
}

fn a_new_authority_is_read(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    standin.rotate_authority()?;
    standin.cut();
    agent.wait_for_log(&["WARN", "cannot reach the API server", "certificate"])?;
    world.assert_web(&ALL);
    world.kubeconfig.set_authority(&authority(&world))?;
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.mark()
}

fn a_server_without_tls_or_http2_will_do(_: Api) -> Result<()> {
    for standin in [Standin::start_plain()?, Standin::start_http1()?] {
        let world = World::with_web(Api::Standin(Box::new(standin)))?;
        let _agent = world.start()?;
        world.wait_for_event("Starting")?;
        world.assert_web(&ALL);
        world.mark()?;
    }
    Ok(())
}

/// With HTTP/2: lists, watches and Events, at the start and after an outage.
fn all_requests_share_one_connection(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let _agent = world.start()?;
    world.wait_for_event("Starting")?;
    world.mark()?;
    assert_eq!(world.gate.accepted(), 1);
    world.gate.cut();
    world.mark()?;
    assert_eq!(world.gate.accepted(), 2);
    Ok(())
}

fn a_host_that_is_not_there_is_named(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let kubeconfig = Kubeconfig::new("https://no-such-host.invalid:6443")?.token(TOKEN)?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    agent.wait_for_log(&["WARN", "the API server", "no-such-host.invalid"])?;
    assert!(agent.is_running());
    Ok(())
}

/// `me:s cret` in base64.
const PROXY_AUTHORIZATION: &str = "Basic bWU6cyBjcmV0";

/// A proxy to the server, and a kubeconfig for a server that only the proxy reaches.
fn proxied(world: &World, proxy_wants: Option<&str>) -> Result<(Proxy, Kubeconfig)> {
    let proxy = Proxy::start(world.api.connector(), proxy_wants)?;
    let kubeconfig = Kubeconfig::new("https://kubernetes:6443")?.authority(&authority(world))?;
    Ok((proxy, kubeconfig.token_file(TOKEN)?))
}

fn a_proxy_of_the_kubeconfig_or_the_environment_is_used(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    for of_kubeconfig in [true, false] {
        let (proxy, mut kubeconfig) = proxied(&world, Some(PROXY_AUTHORIZATION))?;
        let mut url = format!("http://me:s%20cret@{}", proxy.address());
        let mut no_proxy = "10.0.0.0/8,.svc,kubernetes:443";
        if of_kubeconfig {
            kubeconfig = kubeconfig.cluster(&format!("proxy-url: '{url}'"))?;
            // It comes before what the environment says.
            (url, no_proxy) = ("http://127.0.0.1:1".to_owned(), "*");
        }
        let variables = [format!("HTTPS_PROXY={url}"), format!("NO_PROXY={no_proxy}")];
        let environment = ["env", &variables[0], &variables[1]];
        let agent = world.agent_with(&kubeconfig)?.wrapper(&environment).arg("-v=10").start()?;
        world.assert_web(&ALL);
        assert!(!proxy.requests().is_empty(), "{url}");
        assert!(proxy.requests().iter().all(|target| target == "kubernetes:6443"));
        for secret in ["s cret", "s%20cret", PROXY_AUTHORIZATION] {
            assert!(!agent.log().contains(secret), "{secret}");
        }
        agent.stop()?;
    }
    Ok(())
}

/// The files of a service account are mounted where a Pod has them.
fn a_proxy_of_the_environment_is_used_in_a_pod(api: Api) -> Result<()> {
    const MOUNT: &str = "mount -t tmpfs tmpfs /var/lib && \
        mkdir -p /var/lib/secrets/kubernetes.io/serviceaccount && \
        cp \"$1\"/* /var/lib/secrets/kubernetes.io/serviceaccount/ && shift && \
        mount --bind /var/lib /var/run && exec \"$@\"";
    let world = World::with_web(api)?;
    let proxy = Proxy::start(world.api.connector(), None)?;
    let account = tempfile::tempdir()?;
    fs::write(account.path().join("token"), format!("{TOKEN}\n"))?;
    fs::write(account.path().join("ca.crt"), authority(&world))?;
    fs::write(account.path().join("namespace"), "kube-system")?;
    let variable = format!("https_proxy={}", proxy.address());
    let account = account.path().display().to_string();
    let wrapper = [
        "env",
        &variable,
        "KUBERNETES_SERVICE_HOST=kubernetes",
        "KUBERNETES_SERVICE_PORT=443",
        "unshare",
        "--mount",
        "sh",
        "-c",
        MOUNT,
        "sh",
        &account,
    ];
    let _agent = shunt_testbed::Agent::builder(SHUNT, &world.lab.node)
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
        .wrapper(&wrapper)
        .start()?;
    world.assert_web(&ALL);
    assert_eq!(proxy.requests().first().map(String::as_str), Some("kubernetes:443"));
    Ok(())
}

fn a_proxy_is_not_used_where_the_environment_says_so(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    // A loopback address never needs a proxy …
    let nowhere = "HTTPS_PROXY=http://127.0.0.1:1";
    let agent = world.agent()?.wrapper(&["env", nowhere]).start()?;
    world.assert_web(&ALL);
    agent.stop()?;
    // … and a name does not if it is listed.
    let kubeconfig = Kubeconfig::new("https://no-such-host.invalid:6443")?.token(TOKEN)?;
    let environment = ["env", nowhere, "NO_PROXY=invalid"];
    let agent = world.agent_with(&kubeconfig)?.wrapper(&environment).spawn()?;
    let line = agent.wait_for_log(&["WARN", "the API server", "no-such-host.invalid:6443: "])?;
    assert!(!line.contains("proxy"), "{line}");
    Ok(())
}

fn a_proxy_that_refuses_is_named(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let (proxy, kubeconfig) = proxied(&world, Some("Basic other"))?;
    let url = format!("proxy-url: 'http://me:s%20cret@{}'", proxy.address());
    let kubeconfig = kubeconfig.cluster(&url)?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    let way = format!("kubernetes:6443 through the proxy http://{}:", proxy.address());
    let line =
        agent.wait_for_log(&["WARN", "the API server", &way, "credentials in its URL (407)"])?;
    assert!(!line.contains("cret"), "{line}");
    status(&world, &["PROBLEM", &way])?;
    agent.stop()?;

    let (proxy, kubeconfig) = proxied(&world, None)?;
    let address = proxy.address();
    drop(proxy);
    let kubeconfig = kubeconfig.cluster(&format!("proxy-url: 'http://{address}'"))?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    let way = format!("kubernetes:6443 through the proxy http://{address}:");
    agent.wait_for_log(&["WARN", &way, "cannot reach the proxy", "refused"])?;
    Ok(())
}
