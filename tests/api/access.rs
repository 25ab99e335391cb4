//! Who the agent is to the server, and how it finds it.

use std::fs;
use std::process::Output;

use anyhow::Result;
use shunt_apiserver::{Api, Authority, Case, Kubeconfig, Standin, TOKEN, both, standin_only};

use crate::world::World;
use crate::{events, status};

pub(crate) fn cases() -> Vec<Case> {
    let both = both![
        a_client_certificate_will_do,
        a_wrong_authority_is_named,
        a_wrong_token_is_named,
        no_output_holds_a_secret,
    ];
    let alone = standin_only![
        a_server_where_the_agent_was_started_will_do,
        a_new_token_is_read,
        a_token_file_comes_before_a_token,
        a_new_authority_is_read,
        a_reason_that_changes_is_told,
        a_server_without_tls_will_do,
        a_host_that_is_not_there_is_named,
        configurations_that_cannot_work_end_the_agent,
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
    agent.wait_for_log(&["WARN", "the API server cannot be reached", "certificate"])?;
    // The right one may come yet.
    kubeconfig.set_authority(&authority(&world))?;
    agent.wait_ready()?;
    world.assert_web(&ALL);
    Ok(())
}

fn a_wrong_token_is_named(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let kubeconfig = kubeconfig(&world)?.authority(&authority(&world))?.token_file("nobody")?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    agent.wait_for_log(&["WARN", "does not accept our credentials", "401"])?;
    kubeconfig.set_token(TOKEN)?;
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
    events::wait_for(&world, "Starting")?;
    world.kubeconfig.set_token(SECRETS[1])?;
    // Then all files are read again.
    world.gate.refuse()?;
    agent.wait_for_log(&["WARN", "the API server cannot be reached", "refused"])?;
    world.gate.reopen()?;
    agent.wait_for_log(&["WARN", "does not accept our credentials", "401"])?;
    let mut outputs = vec![status::wait_for(&world, &["PROBLEM", "credentials"])?];
    for (port, path) in [(10249, "/metrics"), (10249, "/configz"), (10256, "/healthz")] {
        outputs.push(format!("{:?}", agent.http_get(port, path)?));
    }
    outputs.push(format!("{:?}", events::with_reason(&world, "Starting")?));
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
    standin.configure(|settings| settings.tokens = vec!["rotated".to_owned()]);
    fs::write(file.path(), "rotated\n")?;
    standin.cut();
    world.mark()
}

fn a_new_token_is_read(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    standin.configure(|settings| settings.tokens = vec!["another".to_owned()]);
    standin.cut();
    agent.wait_for_log(&["WARN", "does not accept our credentials", "401"])?;
    world.assert_web(&ALL);
    world.kubeconfig.set_token("another")?;
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.mark()?;

    // And when the file is there first.
    world.kubeconfig.set_token("a third")?;
    standin.configure(|settings| settings.tokens = vec!["a third".to_owned()]);
    standin.cut();
    world.mark()
}

/// A server that comes back is not the same in all respects: the reason that counts is the last.
fn a_reason_that_changes_is_told(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    world.gate.refuse()?;
    agent.wait_for_log(&["WARN", "the API server cannot be reached", "refused"])?;
    world.standin()?.configure(|settings| settings.tokens.clear());
    world.gate.reopen()?;
    agent.wait_for_log(&["WARN", "does not accept our credentials", "401"])?;
    world.standin()?.configure(|settings| settings.tokens.push(TOKEN.to_owned()));
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.mark()
}

fn a_new_authority_is_read(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let agent = world.start()?;
    let standin = world.standin()?;
    standin.rotate_authority()?;
    standin.cut();
    agent.wait_for_log(&["WARN", "the API server cannot be reached", "certificate"])?;
    world.assert_web(&ALL);
    world.kubeconfig.set_authority(&authority(&world))?;
    agent.wait_for_log(&["INFO", "answers again"])?;
    world.mark()
}

fn a_server_without_tls_will_do(_: Api) -> Result<()> {
    let world = World::with_web(Api::Standin(Box::new(Standin::start_plain()?)))?;
    let _agent = world.start()?;
    world.assert_web(&ALL);
    world.mark()
}

fn a_host_that_is_not_there_is_named(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let kubeconfig = Kubeconfig::new("https://no-such-host.invalid:6443")?.token(TOKEN)?;
    let agent = world.agent_with(&kubeconfig)?.spawn()?;
    agent.wait_for_log(&["WARN", "the API server", "no-such-host.invalid"])?;
    assert!(agent.is_running());
    Ok(())
}

/// One sentence, and no waiting for what cannot come.
fn configurations_that_cannot_work_end_the_agent(api: Api) -> Result<()> {
    let world = World::new(api)?;
    let fails = |kubeconfig: &Kubeconfig, words: &[&str]| -> Result<()> {
        let output = world.agent_with(kubeconfig)?.once()?;
        assert!(matches!(output.status.code(), Some(1 | 64)), "{words:?}: {output:?}");
        assert_one_sentence(&output, words);
        Ok(())
    };
    let exec = kubeconfig(&world)?
        .user("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}")?;
    fails(&exec, &["exec", "starts no programs", "token", "client certificate"])?;

    let no_token = kubeconfig(&world)?.user("tokenFile: /nowhere/token")?;
    fails(&no_token, &["/nowhere/token"])?;

    let missing = kubeconfig(&world)?;
    fs::remove_file(missing.path())?;
    fails(&missing, &["kubeconfig", &missing.path().display().to_string(), "No such file"])?;

    let broken = kubeconfig(&world)?;
    fs::write(broken.path(), "clusters: [")?;
    fails(&broken, &["kubeconfig", &broken.path().display().to_string()])?;

    let not_pem = kubeconfig(&world)?.token(TOKEN)?.authority("not a certificate")?;
    fails(&not_pem, &["certificate"])
}

fn assert_one_sentence(output: &Output, words: &[&str]) {
    let log = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{words:?}: one error is enough:\n{log}");
    assert!(words.iter().all(|word| errors[0].contains(word)), "no {words:?}:\n{log}");
}
