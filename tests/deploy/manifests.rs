//! The manifests, as Kubernetes reads them and as the chart means them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use shunt::source::spanned_yaml;

use crate::kinds::{Object, objects};
use crate::{RENDERED, read, repository};

/// The DaemonSets of all renderings, with the path of each.
pub(crate) fn daemon_sets() -> Result<Vec<(&'static str, DaemonSet)>> {
    let mut found = Vec::new();
    for path in RENDERED {
        for object in objects(&read(path)?).with_context(|| path.to_owned())? {
            if let Object::DaemonSet(daemon_set) = object {
                found.push((path, *daemon_set));
            }
        }
    }
    assert_eq!(found.len(), RENDERED.len() - 2, "all but those for monitoring and checks have one");
    Ok(found)
}

/// A Job puts its name into a label.
#[test]
fn jobs_of_nodes_with_long_names_have_names_of_their_own() -> Result<()> {
    let mut names = BTreeMap::new();
    for object in objects(&read("tests/fixtures/chart/jobs.yaml")?)? {
        let Object::Job(job) = object else { continue };
        let name = job.metadata.name.context("no name")?;
        let node = job.spec.and_then(|spec| spec.template.spec?.node_name).context("no node")?;
        let is_label = |label: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !label.is_empty() && label.chars().all(inner) && label.trim_matches('-') == label
        };
        assert!(name.len() <= 63 && name.split('.').all(is_label), "{name}");
        assert_eq!(names.insert(name, node), None, "{names:?}");
    }
    assert_eq!(names.len(), 2);
    Ok(())
}

/// The pod of the Job that runs `shunt check`.
pub(crate) fn check_pod() -> Result<PodSpec> {
    for object in objects(&read("deploy/guides/check.yaml")?)? {
        let Object::Job(job) = object else { continue };
        return job.spec.and_then(|spec| spec.template.spec).context("no pod");
    }
    anyhow::bail!("no Job")
}

pub(crate) fn pod(daemon_set: &DaemonSet) -> Result<&PodSpec> {
    let spec = daemon_set.spec.as_ref().context("no spec")?;
    spec.template.spec.as_ref().context("no pod")
}

/// The container that the agent runs in.
pub(crate) fn agent(daemon_set: &DaemonSet) -> Result<&Container> {
    let [container] = &pod(daemon_set)?.containers[..] else {
        anyhow::bail!("not one container");
    };
    Ok(container)
}

fn yaml_files(folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            yaml_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path.display().to_string());
        }
    }
    Ok(())
}

#[test]
fn every_object_has_the_fields_of_its_kind_and_no_others() -> Result<()> {
    let mut files = Vec::new();
    yaml_files(&repository("deploy/kustomize"), &mut files)?;
    assert!(files.len() >= 7, "{files:?}");
    files.extend(RENDERED.map(str::to_owned));
    for file in files {
        let objects = objects(&fs::read_to_string(repository(&file))?).context(file.clone())?;
        assert!(!objects.is_empty(), "{file}");
    }
    Ok(())
}

#[test]
fn every_file_of_values_can_be_read() -> Result<()> {
    let mut files = Vec::new();
    yaml_files(&repository("deploy/values"), &mut files)?;
    files.extend(["Chart.yaml", "values.yaml"].map(|file| format!("deploy/chart/{file}")));
    for file in files {
        let documents = fs::read(repository(&file))?;
        assert_eq!(spanned_yaml::parse(&documents).context(file.clone())?.len(), 1, "{file}");
    }
    Ok(())
}

#[test]
fn a_kustomization_names_only_files_that_there_are() -> Result<()> {
    for folder in ["base", "monitoring", "example"] {
        let folder = format!("deploy/kustomize/{folder}");
        for object in objects(&read(&format!("{folder}/kustomization.yaml"))?)? {
            let Object::Kustomization(it) = object else { continue };
            let patches = it.patches.into_iter().map(|patch| patch.path);
            for path in it.resources.into_iter().chain(it.components).chain(patches) {
                let path = format!("{folder}/{path}");
                assert!(repository(&path).exists(), "{path}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_agent_is_on_every_node_and_in_its_network() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let pod = pod(&daemon_set)?;
        assert_eq!(pod.host_network, Some(true), "{path}");
        assert_eq!(pod.dns_policy.as_deref(), Some("Default"), "{path}");
        assert_eq!(pod.priority_class_name.as_deref(), Some("system-node-critical"), "{path}");
        let tolerations = pod.tolerations.iter().flatten();
        let all = |t: &&k8s_openapi::api::core::v1::Toleration| {
            t.operator.as_deref() == Some("Exists") && t.key.is_none() && t.effect.is_none()
        };
        assert_eq!(tolerations.filter(all).count(), 1, "{path}");
        let update = daemon_set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let update = update.and_then(|strategy| strategy.rolling_update.as_ref()).context(path)?;
        let numbers = (update.max_unavailable.clone(), update.max_surge.clone());
        let percent = Some(IntOrString::String("10%".to_owned()));
        assert_eq!(numbers, (percent, Some(IntOrString::Int(0))), "{path}");
        // A node admits one pod with these ports at a time.
        assert!(agent(&daemon_set)?.ports.is_some(), "{path}");
    }
    Ok(())
}

#[test]
fn the_agent_has_no_right_but_to_the_nodes_network() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let seccomp = pod(&daemon_set)?.security_context.clone().and_then(|s| s.seccomp_profile);
        assert_eq!(seccomp.context(path)?.type_, "RuntimeDefault");
        let security = agent(&daemon_set)?.security_context.clone().context(path)?;
        let capabilities = security.capabilities.context(path)?;
        assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]), "{path}");
        assert_eq!(capabilities.add, Some(vec!["NET_ADMIN".to_owned()]), "{path}");
        assert_eq!(security.read_only_root_filesystem, Some(true), "{path}");
        assert_eq!(security.allow_privilege_escalation, Some(false), "{path}");
        assert_ne!(security.privileged, Some(true), "{path}");
        // Capabilities that Kubernetes adds are effective for root only.
        assert_eq!(security.run_as_user, Some(0), "{path}");
    }
    Ok(())
}

/// Between kube-proxy's rules and shunt's there is no moment without either.
#[test]
fn kube_proxys_rules_go_once_shunts_are_there() -> Result<()> {
    let mut cleaned_up = 0;
    for (path, daemon_set) in daemon_sets()? {
        let containers = pod(&daemon_set)?.init_containers.iter().flatten();
        let arguments = containers.map(|container| container.args.clone().unwrap_or_default());
        let mut arguments =
            arguments.skip_while(|args| args.first().is_none_or(|a| a != "cleanup"));
        let Some(cleanup) = arguments.next() else { continue };
        assert_eq!(cleanup, ["cleanup", "--kube-proxy", "--keep-own"], "{path}");
        let mut before = pod(&daemon_set)?.init_containers.iter().flatten();
        let program = before
            .find(|container| container.args.iter().flatten().any(|argument| argument == "--once"));
        let program = program.with_context(|| format!("{path}: nothing is programmed before"))?;
        let agent = agent(&daemon_set)?;
        let without_once: Vec<&String> =
            program.args.iter().flatten().filter(|argument| *argument != "--once").collect();
        let is_of_metrics = |argument: &&String| argument.starts_with("--service-metrics");
        let of_agent = agent.args.iter().flatten().filter(|argument| !is_of_metrics(argument));
        assert_eq!(without_once, of_agent.collect::<Vec<_>>(), "{path}");
        assert_eq!(program.env, agent.env, "{path}");
        assert_eq!(program.volume_mounts, agent.volume_mounts, "{path}");
        assert_eq!(program.security_context, agent.security_context, "{path}");
        cleaned_up += 1;
    }
    assert!(cleaned_up > 0);
    Ok(())
}

/// Otherwise the check would say nothing about the agent: it has its node, settings and rights.
#[test]
fn a_check_is_made_with_the_settings_and_rights_of_the_agent() -> Result<()> {
    let compare = |path: &str, check: &Container, agent: &Container| {
        let arguments = |container: &Container, command: &str| -> Vec<String> {
            let all = container.args.clone().unwrap_or_default();
            assert_eq!(all.first().map(String::as_str), Some(command), "{path}");
            all.into_iter().skip(1).collect()
        };
        assert_eq!(arguments(check, "check"), arguments(agent, "run"), "{path}");
        assert_eq!(check.env, agent.env, "{path}");
        assert_eq!(check.volume_mounts, agent.volume_mounts, "{path}");
        assert_eq!(check.security_context, agent.security_context, "{path}");
    };
    let mut init_containers = 0;
    for (path, daemon_set) in daemon_sets()? {
        let agent = agent(&daemon_set)?;
        let mut containers = pod(&daemon_set)?.init_containers.iter().flatten();
        if let Some(check) = containers.find(|container| container.name == "check") {
            compare(path, check, agent);
            let mut after = containers.flat_map(|container| container.args.iter().flatten());
            assert!(!after.any(|argument| argument == "--init-only"), "{path}: sets the sysctls");
            init_containers += 1;
        }
        if path.contains("base") {
            let (job, agents) = (check_pod()?, pod(&daemon_set)?);
            compare(path, job.containers.first().context("no container")?, agent);
            assert_eq!(job.host_network, agents.host_network);
            assert_eq!(job.dns_policy, agents.dns_policy);
            assert_eq!(job.tolerations, agents.tolerations);
            assert_eq!(job.security_context, agents.security_context);
            assert_ne!(job.service_account_name, agents.service_account_name, "is deleted with it");
        }
    }
    assert_eq!(init_containers, 1);
    Ok(())
}

/// `kubectl describe pod` says why a container ended.
#[test]
fn the_end_of_a_container_is_explained_by_its_log() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let pod = pod(&daemon_set)?;
        for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
            let policy = container.termination_message_policy.as_deref();
            assert_eq!(policy, Some("FallbackToLogsOnError"), "{path}: {}", container.name);
        }
    }
    Ok(())
}

/// A node that reboots must not fall to the kernel's size and timeouts of connection tracking.
#[test]
fn the_agent_or_an_init_container_can_write_sysctls_of_connection_tracking() -> Result<()> {
    let mut mounted = 0;
    for (path, daemon_set) in daemon_sets()? {
        let pod = pod(&daemon_set)?;
        let volumes = pod.volumes.iter().flatten();
        let host_path = |path: &str| {
            let is_it = |v: &&Volume| v.host_path.as_ref().is_some_and(|host| host.path == path);
            volumes.clone().find(is_it).map(|volume| volume.name.clone())
        };
        let agent = agent(&daemon_set)?;
        let argument = agent.args.iter().flatten().find_map(|a| a.strip_prefix("--net-sysctls="));
        let Some(volume) = host_path("/proc/sys/net") else {
            assert_eq!(argument, None, "{path}");
            let init = pod.init_containers.iter().flatten();
            let mut arguments = init.flat_map(|container| container.args.iter().flatten());
            assert!(arguments.any(|argument| argument == "--init-only"), "{path}");
            continue;
        };
        let mount = agent.volume_mounts.iter().flatten().find(|mount| mount.name == volume);
        let mount = mount.context(path)?;
        assert_eq!(argument, Some(mount.mount_path.as_str()), "{path}");
        assert!(!mount.mount_path.starts_with("/proc"), "{path}: runtimes mount nothing there");
        assert_ne!(mount.read_only, Some(true), "{path}");
        mounted += 1;
    }
    assert!(mounted > 0);
    Ok(())
}

#[test]
fn selectors_names_and_mounts_fit_together() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let spec = daemon_set.spec.as_ref().context(path)?;
        let labels = spec.template.metadata.clone().and_then(|m| m.labels).context(path)?;
        assert_selects(&spec.selector.match_labels, &labels, path);
        let pod = pod(&daemon_set)?;
        let volumes: BTreeSet<&str> =
            pod.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
        let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
        for mount in containers.flat_map(|container| container.volume_mounts.iter().flatten()) {
            assert!(volumes.contains(mount.name.as_str()), "{path}: {}", mount.name);
            assert_eq!(mount.sub_path, None, "{path}: would not follow changes");
        }
    }
    Ok(())
}

fn assert_selects(
    selector: &Option<BTreeMap<String, String>>,
    labels: &BTreeMap<String, String>,
    path: &str,
) {
    let selector = selector.iter().flatten();
    assert_ne!(selector.clone().count(), 0, "{path}");
    for (key, value) in selector {
        assert_eq!(labels.get(key), Some(value), "{path}: {key}");
    }
}

#[test]
fn probes_ask_for_what_the_agent_serves() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let agent = agent(&daemon_set)?;
        let command = agent.startup_probe.as_ref().and_then(|probe| probe.exec.as_ref());
        let command = command.and_then(|exec| exec.command.as_deref()).context(path)?;
        // The name by which the image has the agent.
        assert_eq!(command, ["shunt", "status", "--startup-probe"], "{path}");
        // Only one rendering binds to the loopback address.
        let has_values = path.contains("everything");
        let port = if has_values { 20_256 } else { 10_256 };
        for probe in [&agent.liveness_probe, &agent.readiness_probe] {
            let get = probe.as_ref().and_then(|probe| probe.http_get.as_ref()).context(path)?;
            assert_eq!(get.path.as_deref(), Some("/livez"), "{path}");
            assert_eq!(get.port, IntOrString::Int(port), "{path}");
            assert_eq!(get.host, has_values.then(|| "::1".to_owned()), "{path}");
        }
        for port in agent.ports.iter().flatten() {
            assert!(matches!(port.name.as_deref(), Some("healthz" | "metrics")), "{path}");
        }
    }
    Ok(())
}

#[test]
fn the_api_server_is_not_looked_for_at_its_cluster_ip() -> Result<()> {
    for (path, daemon_set) in daemon_sets()? {
        let env = agent(&daemon_set)?.env.clone().context(path)?;
        let value = |name: &str| {
            env.iter().find(|variable| variable.name == name).and_then(|v| v.value.clone())
        };
        let given = value("KUBERNETES_SERVICE_HOST").zip(value("KUBERNETES_SERVICE_PORT"));
        let expected = match path {
            // Its ConfigMap has a kubeconfig.
            _ if path.contains("kubeadm") => None,
            _ if path.contains("eks") => None,
            _ if path.contains("kind") => Some(("kind-control-plane", "6443")),
            _ if path.contains("talos") => Some(("127.0.0.1", "7445")),
            _ if path.contains("k3s") => Some(("127.0.0.1", "6444")),
            _ if path.contains("rke2") => Some(("127.0.0.1", "6443")),
            _ if path.contains("base") => Some(("replace-me.invalid", "6443")),
            _ if path.contains("everything") => Some(("api.example.net", "443")),
            _ => Some(("api.example.net", "6443")),
        };
        assert_eq!(given, expected.map(|(h, p)| (h.to_owned(), p.to_owned())), "{path}");
    }
    Ok(())
}

/// EKS has the configuration and the kubeconfig, which the configuration names by its path, in two
/// ConfigMaps.
#[test]
fn configuration_and_kubeconfig_of_eks_are_in_one_folder() -> Result<()> {
    let daemon_sets = daemon_sets()?;
    let (path, daemon_set) =
        daemon_sets.iter().find(|(path, _)| path.contains("eks")).context("no rendering")?;
    let agent = agent(daemon_set)?;
    let config = agent.args.iter().flatten().find_map(|it| it.strip_prefix("--config="));
    assert_eq!(config, Some("/var/lib/kube-proxy/config"), "{path}");
    let fixture = read("tests/fixtures/eks-kube-proxy.yaml")?;
    assert!(fixture.contains("kubeconfig: /var/lib/kube-proxy/kubeconfig\n"), "{fixture}");
    let mounts = agent.volume_mounts.iter().flatten();
    let mount = mounts.clone().find(|mount| mount.mount_path == "/var/lib/kube-proxy");
    let name = &mount.context("no mount")?.name;
    let volume = pod(daemon_set)?.volumes.iter().flatten().find(|volume| volume.name == *name);
    let projected = volume.and_then(|volume| volume.projected.as_ref()).context("no volume")?;
    let sources = projected.sources.iter().flatten();
    let names = sources.filter_map(|source| Some(source.config_map.as_ref()?.name.as_str()));
    assert_eq!(names.collect::<Vec<_>>(), ["kube-proxy-config", "kube-proxy"]);
    Ok(())
}

/// What the agent lists, watches and creates: (API group, resource, verb).
const RIGHTS: [(&str, &str, &str); 9] = [
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("", "services", "list"),
    ("", "services", "watch"),
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    ("events.k8s.io", "events", "create"),
    ("networking.k8s.io", "servicecidrs", "list"),
    ("networking.k8s.io", "servicecidrs", "watch"),
];

#[test]
fn the_role_allows_what_the_agent_does_and_no_more() -> Result<()> {
    for path in RENDERED.iter().filter(|path| !path.contains("monitoring")) {
        let mut rights = BTreeSet::new();
        let mut bound = None;
        let mut account = None;
        for object in objects(&read(path)?)? {
            match object {
                Object::ClusterRole(role) => {
                    for rule in role.rules.iter().flatten() {
                        assert_eq!(rule.non_resource_urls, None, "{path}");
                        for group in rule.api_groups.iter().flatten() {
                            for resource in rule.resources.iter().flatten() {
                                let right =
                                    |verb: &String| (group.clone(), resource.clone(), verb.clone());
                                rights.extend(rule.verbs.iter().map(right));
                            }
                        }
                    }
                }
                Object::ClusterRoleBinding(binding) => {
                    bound = binding.subjects.and_then(|subjects| subjects.into_iter().next());
                }
                Object::ServiceAccount(it) => account = it.metadata.name,
                _ => {}
            }
        }
        let expected = RIGHTS.map(|(g, r, v)| (g.to_owned(), r.to_owned(), v.to_owned()));
        assert_eq!(rights, BTreeSet::from(expected), "{path}");
        assert_eq!(bound.map(|subject| subject.name), account, "{path}");
    }
    Ok(())
}
