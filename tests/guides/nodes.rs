//! What the guides have run on nodes and in pods, as far as the API server sees it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Kubernetes, Shell, everything};
use shunt_testbed::eventually;

use crate::{SHARED, script};

/// What helm prints after an installation.
const NOTES: &str = "deploy/chart/templates/NOTES.txt";
const QUICK_START: &str = "docs/quick-start.md";
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node-1}}";

/// Runs a script that makes a pod and waits for its end. Plays the kubelet for it, which says that
/// the pod failed; then the pod must be gone. Returns the pod as it was made.
fn with_pod(shell: &Shell<'_>, namespace: &str, script: &str) -> Result<Value> {
    let mut command: Command = shell.command(script);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let list = format!("kubectl -n {namespace} get pods -o json");
    let pod = eventually(format_args!("a pod that is made by {script}"), || {
        let pods: Value = serde_json::from_str(&shell.run(&list)?)?;
        Ok(pods["items"].get(0).cloned())
    })?;
    let name = pod["metadata"]["name"].as_str().context("a pod without name")?;
    shell.run(&format!(
        "kubectl -n {namespace} patch pod {name} --subresource=status \
             --patch '{{\"status\": {{\"phase\": \"Failed\"}}}}'"
    ))?;
    let output = child.wait_with_output()?;
    let pods = shell.run(&format!("kubectl -n {namespace} get pods -o name"))?;
    if output.status.success() || !pods.is_empty() {
        bail!("{script}\n{}\nleft behind: {pods}", everything(&output));
    }
    Ok(pod)
}

pub(crate) fn commands_on_nodes(kubernetes: &Kubernetes) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    kubernetes.put(NODE)?;
    let function = script(SHARED, "on_node() {")?;
    let pod = with_pod(
        &shell,
        "kube-system",
        &format!("{function}\non_node node-1 registry.example.net/shunt:0.1.0 cleanup --keep-own"),
    )?;
    assert_eq!(pod["spec"]["nodeName"], "node-1");
    assert_eq!(pod["spec"]["hostNetwork"], true);
    let containers = pod["spec"]["containers"].as_array().context("no containers")?;
    let [container] = &containers[..] else { bail!("not one container: {containers:?}") };
    assert_eq!(container["image"], "registry.example.net/shunt:0.1.0");
    assert_eq!(container["args"], json!(["cleanup", "--keep-own"]));
    assert_eq!(container["command"], Value::Null);
    assert_eq!(container["securityContext"]["privileged"], true);

    let cleanup = script(NOTES, "kubectl -n {{ .Release.Namespace }} run")?
        .replace("{{ .Release.Namespace }}", "kube-system")
        .replace("{{ include \"shunt.image\" . }}", "registry.example.net/shunt:0.1.0")
        .replace("NODE", "node-1");
    let cleaning = with_pod(&shell, "kube-system", &cleanup)?;
    for field in ["nodeName", "hostNetwork", "tolerations"] {
        assert_eq!(cleaning["spec"][field], pod["spec"][field], "{field}");
    }
    let container_of_notes = &cleaning["spec"]["containers"][0];
    assert_eq!(container_of_notes["args"], json!(["cleanup"]));
    for field in ["image", "securityContext"] {
        assert_eq!(container_of_notes[field], container[field], "{field}");
    }

    for guide in [SHARED, QUICK_START] {
        let lookup = script(guide, "kubectl run shunt-dns")?.replace("NODE", "node-1");
        let pod = with_pod(&shell, "default", &lookup)?;
        let command = &pod["spec"]["containers"][0]["command"];
        assert_eq!(*command, json!(["nslookup", "kubernetes.default"]), "{guide}");
    }
    Ok(())
}

pub(crate) fn verification(kubernetes: &Kubernetes) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    // Nothing runs the pods of the deployment, and there is no node to ask.
    let node_port = script(SHARED, "kubectl create deployment shunt-try")?
        .replace("kubectl rollout status", ": ")
        .replace("curl ", "echo ")
        .replace("ADDRESSES", "192.0.2.10 192.0.2.11");
    let printed = shell.run(&node_port)?;
    for address in ["192.0.2.10", "192.0.2.11"] {
        let asked = printed.split("http://").find_map(|it| it.strip_prefix(address));
        let port =
            asked.and_then(|it| it.strip_prefix(':')?.split('/').next()?.parse::<u16>().ok());
        assert!(port.is_some_and(|port| port >= 30_000), "{printed}");
    }
    let left =
        shell.run("kubectl get deployments -o name; kubectl get service shunt-try || true")?;
    assert_eq!(left, "");

    // An answer of the API server shows that the ClusterIP works, also where it is 401.
    let text = script(SHARED, "curl --silent --show-error")?;
    let (curl, expected) = text
        .split_once("https://CLUSTER-IP/livez")
        .with_context(|| format!("no ClusterIP is asked in {text}"))?;
    let curl = curl.replace("\\\n", " ");
    assert_eq!(shell.run(&format!("{curl} https://127.0.0.1:6443/livez"))?, "200\n");
    assert_eq!(expected.trim(), "# 200 or 401");
    Ok(())
}
