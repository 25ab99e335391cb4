//! The manifests, as the chart means them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{RENDERED, items, objects, read, texts};

/// The DaemonSets of all renderings, with the path of each.
pub(crate) fn daemon_sets() -> Result<Vec<(&'static str, Value)>> {
    let mut found = Vec::new();
    for path in RENDERED {
        let objects = objects(path)?.into_iter().filter(|object| object["kind"] == "DaemonSet");
        found.extend(objects.map(|object| (path, object)));
    }
    assert_eq!(found.len(), RENDERED.len() - 2, "all but those for monitoring and checks have one");
    Ok(found)
}

/// The pod of the Job that runs `shunt check`.
pub(crate) fn check_pod() -> Result<Value> {
    let mut objects = objects("deploy/guides/check.yaml")?.into_iter();
    let mut job = objects.find(|object| object["kind"] == "Job").context("no Job")?;
    Ok(pod(&mut job).take())
}

fn pod(object: &mut Value) -> &mut Value {
    &mut object["spec"]["template"]["spec"]
}

/// The pods of all DaemonSets, with the path of each.
pub(crate) fn pods() -> Result<Vec<(&'static str, Value)>> {
    let pods = daemon_sets()?.into_iter();
    Ok(pods.map(|(path, mut daemon_set)| (path, pod(&mut daemon_set).take())).collect())
}

/// The containers of a pod, the agent's first.
pub(crate) fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    items(&pod["containers"]).chain(items(&pod["initContainers"]))
}

/// Where a container mounts the volume of this name.
fn mounts<'a>(container: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    items(&container["volumeMounts"]).filter(move |mount| mount["name"] == name)
}

/// A Job puts its name into a label.
#[test]
fn jobs_of_nodes_with_long_names_have_names_of_their_own() -> Result<()> {
    let mut names = BTreeMap::new();
    for mut job in objects("tests/fixtures/chart/jobs.yaml")? {
        let name = job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label =
            |it: &str| !it.is_empty() && it.chars().all(inner) && it.trim_matches('-') == it;
        assert!(name.len() <= 63 && name.split('.').all(is_label), "{name}");
        let node = pod(&mut job)["nodeName"].take();
        assert_eq!(names.insert(name, node), None, "{names:?}");
    }
    assert_eq!(names.len(), 2);
    Ok(())
}

/// The agent is on every node, in its network, and has no right but to that. A selector cannot be changed:
/// to change it, CHANGELOG.md has to say how an upgrade goes then.
#[test]
fn every_rendering_has_these_fields() -> Result<()> {
    let fields = &objects("tests/deploy/fields.yaml")?[0];
    for (path, daemon_set) in daemon_sets()? {
        for (field, expected) in fields.as_object().context("no fields")? {
            let found = daemon_set.pointer(field).unwrap_or(&Value::Null);
            // Only one rendering binds to the loopback address.
            let expected = if path.contains("everything") && field.ends_with("Probe/httpGet") {
                &json!({"path": "/livez", "port": 20_256, "host": "::1"})
            } else {
                expected
            };
            assert_eq!(found, expected, "{path}: {field}");
        }
    }
    Ok(())
}

/// Between kube-proxy's rules and shunt's there is no moment without either.
#[test]
fn kube_proxys_rules_go_once_shunts_are_there() -> Result<()> {
    let mut cleaned_up = 0;
    for (path, pod) in pods()? {
        let agent = &pod["containers"][0];
        let mut before = items(&pod["initContainers"]).map(|it| (it, texts(&it["args"])));
        let Some((program, mut args)) = before.find(|(_, args)| args.contains(&"--once")) else {
            assert!(!items(&pod["initContainers"]).any(|it| it["args"][0] == "cleanup"), "{path}");
            continue;
        };
        let cleanup = before.find(|(_, args)| args[0] == "cleanup").context(path)?.1;
        assert_eq!(cleanup, ["cleanup", "--kube-proxy", "--keep-own"], "{path}");
        args.retain(|argument| *argument != "--once");
        let mut of_agent = texts(&agent["args"]);
        of_agent.retain(|argument| !argument.starts_with("--service-metrics"));
        assert_eq!(args, of_agent, "{path}");
        assert_same(path, program, agent, &["env", "volumeMounts", "securityContext"]);
        cleaned_up += 1;
    }
    assert!(cleaned_up > 0);
    Ok(())
}

#[track_caller]
fn assert_same(path: &str, one: &Value, other: &Value, fields: &[&str]) {
    for field in fields {
        assert_eq!(one[field], other[field], "{path}: {field}");
    }
}

/// Otherwise the check would say nothing about the agent: it has its node, settings and rights.
#[test]
fn a_check_is_made_with_the_settings_and_rights_of_the_agent() -> Result<()> {
    let compare = |path: &str, check: &Value, agent: &Value| {
        let [check_args, args] = [check, agent].map(|it| texts(&it["args"]));
        assert_eq!(
            (check_args[0], args[0], &check_args[1..]),
            ("check", "run", &args[1..]),
            "{path}"
        );
        assert_same(path, check, agent, &["env", "volumeMounts", "securityContext"]);
    };
    let mut init_containers = 0;
    for (path, pod) in pods()? {
        let agent = &pod["containers"][0];
        let mut containers = items(&pod["initContainers"]);
        if let Some(check) = containers.find(|container| container["name"] == "check") {
            compare(path, check, agent);
            let mut after = containers.flat_map(|container| texts(&container["args"]));
            assert!(!after.any(|argument| argument == "--init-only"), "{path}: sets the sysctls");
            init_containers += 1;
        }
        if path.contains("base") {
            let job = check_pod()?;
            compare(path, &job["containers"][0], agent);
            let fields = ["hostNetwork", "dnsPolicy", "tolerations", "securityContext"];
            assert_same(path, &job, &pod, &fields);
            assert_ne!(job["serviceAccountName"], pod["serviceAccountName"], "is deleted with it");
        }
    }
    assert_eq!(init_containers, 1);
    Ok(())
}

/// A node that reboots must not fall to the kernel's size and timeouts of connection tracking.
#[test]
fn the_agent_or_an_init_container_can_write_sysctls_of_connection_tracking() -> Result<()> {
    let mut mounted = 0;
    for (path, pod) in pods()? {
        let agent = &pod["containers"][0];
        let args = texts(&agent["args"]);
        let argument = args.iter().find_map(|argument| argument.strip_prefix("--net-sysctls="));
        let mut volumes = items(&pod["volumes"]);
        let Some(volume) = volumes.find(|it| it["hostPath"]["path"] == "/proc/sys/net") else {
            assert_eq!(argument, None, "{path}");
            let mut init = items(&pod["initContainers"]).flat_map(|it| texts(&it["args"]));
            assert!(init.any(|argument| argument == "--init-only"), "{path}");
            continue;
        };
        let mount = mounts(agent, volume["name"].as_str().context(path)?).next().context(path)?;
        // Runtimes mount nothing below /proc.
        assert_eq!(argument, Some("/host/proc/sys/net"), "{path}");
        assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&json!(argument), &Value::Null));
        mounted += 1;
    }
    assert!(mounted > 0);
    Ok(())
}

/// A file with a subPath would not follow changes; `kubectl describe pod` says why a container ended.
#[test]
fn containers_follow_their_configuration_and_explain_their_end() -> Result<()> {
    for (path, pod) in pods()? {
        for container in containers(&pod) {
            assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError", "{path}");
            let mut mounts = items(&container["volumeMounts"]);
            assert!(mounts.all(|mount| mount["subPath"].is_null()), "{path}");
        }
    }
    Ok(())
}

#[test]
fn the_api_server_is_not_looked_for_at_its_cluster_ip() -> Result<()> {
    for (path, pod) in pods()? {
        let env = &pod["containers"][0]["env"];
        let value = |name: &str| items(env).find(|it| it["name"] == name)?["value"].as_str();
        let given = value("KUBERNETES_SERVICE_HOST").zip(value("KUBERNETES_SERVICE_PORT"));
        let is = |name: &str| path.contains(name);
        let expected = match path {
            // Its ConfigMap has a kubeconfig.
            _ if is("kubeadm") || is("eks") => None,
            _ if is("kind") => Some(("kind-control-plane", "6443")),
            _ if is("talos") => Some(("127.0.0.1", "7445")),
            _ if is("k3s") => Some(("127.0.0.1", "6444")),
            _ if is("rke2") => Some(("127.0.0.1", "6443")),
            _ if is("base") => Some(("replace-me.invalid", "6443")),
            _ if is("everything") => Some(("api.example.net", "443")),
            _ => Some(("api.example.net", "6443")),
        };
        assert_eq!(given, expected, "{path}");
    }
    Ok(())
}

/// EKS has the configuration and the kubeconfig, which the configuration names by its path, in two
/// ConfigMaps.
#[test]
fn configuration_and_kubeconfig_of_eks_are_in_one_folder() -> Result<()> {
    let pods = pods()?;
    let (_, pod) = pods.iter().find(|(path, _)| path.contains("eks")).context("no rendering")?;
    let agent = &pod["containers"][0];
    assert!(texts(&agent["args"]).contains(&"--config=/var/lib/kube-proxy/config"), "{agent}");
    let fixture = read("tests/fixtures/eks-kube-proxy.yaml")?;
    assert!(fixture.contains("kubeconfig: /var/lib/kube-proxy/kubeconfig\n"), "{fixture}");
    let sources = json!([{"configMap": {"name": "kube-proxy-config"}}, {"configMap": {"name": "kube-proxy"}}]);
    let volume = items(&pod["volumes"]).find(|it| it["projected"]["sources"] == sources);
    let mut mounts =
        mounts(agent, volume.context("no volume")?["name"].as_str().context("no name")?);
    assert!(mounts.any(|mount| mount["mountPath"] == "/var/lib/kube-proxy"), "{agent}");
    Ok(())
}

/// What the agent lists, watches and creates.
const RIGHTS: [&str; 9] = [
    "/nodes list",
    "/nodes watch",
    "/services list",
    "/services watch",
    "discovery.k8s.io/endpointslices list",
    "discovery.k8s.io/endpointslices watch",
    "events.k8s.io/events create",
    "networking.k8s.io/servicecidrs list",
    "networking.k8s.io/servicecidrs watch",
];

/// The role to which a binding leads cannot be changed either.
#[test]
fn the_role_allows_what_the_agent_does_and_no_more() -> Result<()> {
    for path in RENDERED.iter().filter(|path| !path.contains("monitoring")) {
        let objects = objects(path)?;
        let of = |kind: &str| objects.iter().find(|it| it["kind"] == kind).context(kind.to_owned());
        let mut rights = Vec::new();
        for rule in items(&of("ClusterRole")?["rules"]) {
            assert_eq!(rule["nonResourceURLs"], Value::Null, "{path}");
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let verbs = texts(&rule["verbs"]).into_iter();
                    rights.extend(verbs.map(|verb| format!("{group}/{resource} {verb}")));
                }
            }
        }
        rights.sort();
        assert_eq!(rights, RIGHTS, "{path}");
        let binding = of("ClusterRoleBinding")?;
        let account = &of("ServiceAccount")?["metadata"]["name"];
        assert_eq!(binding["subjects"][0]["name"], *account, "{path}");
        let name = if path.contains("check") { "shunt-check" } else { "shunt" };
        for object in [&binding["metadata"], &binding["roleRef"], &of("ClusterRole")?["metadata"]] {
            assert_eq!(object["name"], name, "{path}");
        }
    }
    Ok(())
}
