//! What a kubelet makes of a pod: volumes, and the configurations of its sandbox and containers.
//!
//! A field that this does not know is an error, so that the container always has what the chart says.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, PodSecurityContext, PodSpec, Probe, SeccompProfile,
    SecurityContext, Volume,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use shunt::source::spanned_yaml::{self, typed};

use crate::cri;

/// Paths that the kubelet hides from containers that are not privileged.
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// Paths that such a container can only read.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where a pod finds the credentials of its service account.
const CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A rendering of the chart: a DaemonSet and the ConfigMap beside it.
pub(crate) struct Rendered {
    pub(crate) pod: PodSpec,
    pub(crate) config: BTreeMap<String, String>,
}

impl Rendered {
    /// Reads a file of the repository.
    pub(crate) fn read(path: &str) -> Result<Self> {
        let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))?;
        let (mut pod, mut config) = (None, None);
        for object in spanned_yaml::parse(&text)? {
            match object.value()["kind"].as_str() {
                Some("DaemonSet") => {
                    let daemon_set: DaemonSet = typed(object.json())?;
                    pod = daemon_set.spec.and_then(|spec| spec.template.spec);
                }
                Some("ConfigMap") => {
                    let map: ConfigMap = typed(object.json())?;
                    config = map.data;
                }
                _ => {}
            }
        }
        let (pod, config) = pod.zip(config).with_context(|| format!("{path}: no DaemonSet"))?;
        Ok(Self { pod, config })
    }

    /// The container of the agent.
    pub(crate) fn agent(&self) -> Result<&Container> {
        self.pod.containers.first().context("no container")
    }

    /// The same, to be changed by a test.
    pub(crate) fn agent_mut(&mut self) -> Result<&mut Container> {
        self.pod.containers.first_mut().context("no container")
    }

    /// Sets an environment variable of the agent: what a value of the chart does.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) -> Result<()> {
        let variables = self.agent_mut()?.env.iter_mut().flatten();
        let variable = variables.into_iter().find(|variable| variable.name == name);
        variable.with_context(|| format!("no {name}"))?.value = Some(value.to_owned());
        Ok(())
    }

    /// The probes of the agent, that of the start first.
    pub(crate) fn probes(&self) -> Result<Vec<Question>> {
        let agent = self.agent()?;
        let probes = [&agent.startup_probe, &agent.liveness_probe, &agent.readiness_probe];
        probes.into_iter().map(|probe| question(probe.as_ref().context("no probe")?)).collect()
    }
}

/// What a probe asks.
pub(crate) enum Question {
    /// A command in the container, which ends with 0.
    Command(Vec<String>),
    /// The port and path on the node.
    Http(u16, String),
}

fn question(probe: &Probe) -> Result<Question> {
    if let Some(command) = probe.exec.as_ref().and_then(|exec| exec.command.clone()) {
        return Ok(Question::Command(command));
    }
    let get = probe.http_get.as_ref().context("neither a command nor HTTP")?;
    let IntOrString::Int(port) = &get.port else { bail!("{:?} is no number", get.port) };
    Ok(Question::Http(u16::try_from(*port)?, get.path.clone().context("no path")?))
}

/// The configurations of a pod, and its volumes on the host.
pub(crate) struct Pod {
    pub(crate) sandbox: cri::PodSandboxConfig,
    pub(crate) container: cri::ContainerConfig,
    config: PathBuf,
    log: PathBuf,
}

impl Pod {
    /// Makes the volumes of a pod below `folder`, and its configurations.
    pub(crate) fn new(
        rendered: &Rendered,
        node: &str,
        cgroup: &str,
        credentials: &[(&str, &str)],
        folder: &Path,
    ) -> Result<Self> {
        let (spec, agent) = (&rendered.pod, rendered.agent()?);
        let config = folder.join("config");
        update_volume(&config, &rendered.config)?;
        let account = folder.join("credentials");
        let credentials = credentials.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        update_volume(&account, &credentials.collect())?;
        let mut mounts = vec![mount(CREDENTIALS, &account, true)];
        for wanted in agent.volume_mounts.iter().flatten() {
            let mut volumes = spec.volumes.iter().flatten();
            let volume = volumes.find(|volume| volume.name == wanted.name);
            let volume = volume.with_context(|| format!("no volume {}", wanted.name))?;
            let path = host_path(volume, &config)?;
            mounts.push(mount(&wanted.mount_path, &path, wanted.read_only == Some(true)));
        }
        let logs = folder.join("logs");
        fs::create_dir_all(&logs)?;
        let seccomp = pod_seccomp(spec.security_context.as_ref())?;
        let context = agent.security_context.clone().unwrap_or_default();
        let network = if spec.host_network == Some(true) { cri::MODE_NODE } else { cri::MODE_POD };
        let namespaces = |pid| cri::NamespaceOption { network, pid, ipc: cri::MODE_POD };
        let sandbox = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "shunt".to_owned(),
                uid: folder.display().to_string(),
                namespace: "kube-system".to_owned(),
            }),
            log_directory: logs.display().to_string(),
            // Else it is the machine's, which may be a link to a file in /run.
            dns_config: Some(cri::DnsConfig { servers: vec!["192.0.2.1".to_owned()] }),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: cgroup.to_owned(),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces(cri::MODE_CONTAINER)),
                    seccomp: Some(cri::SecurityProfile { profile_type: cri::RUNTIME_DEFAULT }),
                }),
            }),
        };
        let security = security_context(context, seccomp, namespaces(cri::MODE_CONTAINER))?;
        let container = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: agent.name.clone() }),
            image: Some(cri::ImageSpec { image: agent.image.clone().context("no image")? }),
            command: agent.command.clone().unwrap_or_default(),
            args: arguments(agent, node)?,
            envs: environment(agent, node)?
                .into_iter()
                .map(|(key, value)| cri::KeyValue { key, value })
                .collect(),
            mounts,
            log_path: "shunt.log".to_owned(),
            linux: Some(cri::LinuxContainerConfig { security_context: Some(security) }),
        };
        Ok(Self { sandbox, container, config, log: logs.join("shunt.log") })
    }

    /// Replaces the content of the ConfigMap, as the kubelet does for a running pod.
    pub(crate) fn update_config(&self, content: &BTreeMap<String, String>) -> Result<()> {
        update_volume(&self.config, content)
    }

    /// What the container has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Writes the files of a volume into a new folder, to which the link `..data` then leads.
fn update_volume(folder: &Path, files: &BTreeMap<String, String>) -> Result<()> {
    fs::create_dir_all(folder)?;
    let count = fs::read_dir(folder)?.count();
    let data = format!("..{count}");
    fs::create_dir(folder.join(&data))?;
    for (name, content) in files {
        fs::write(folder.join(&data).join(name), content)?;
        if !folder.join(name).is_symlink() {
            symlink(format!("..data/{name}"), folder.join(name))?;
        }
    }
    symlink(&data, folder.join("..data_tmp"))?;
    fs::rename(folder.join("..data_tmp"), folder.join("..data"))?;
    Ok(())
}

/// The folder on the host that a volume is.
fn host_path(volume: &Volume, config: &Path) -> Result<PathBuf> {
    match (&volume.host_path, &volume.config_map) {
        (Some(host), None) => {
            let path = PathBuf::from(&host.path);
            ensure!(host.type_.as_deref() != Some("Directory") || path.is_dir(), "no {path:?}");
            Ok(path)
        }
        (None, Some(_)) => Ok(config.to_owned()),
        _ => bail!("a volume of another kind: {volume:?}"),
    }
}

fn mount(container: &str, host: &Path, readonly: bool) -> cri::Mount {
    let host_path = host.display().to_string();
    cri::Mount { container_path: container.to_owned(), host_path, readonly }
}

/// The variables of a container, without those of Services.
fn environment(container: &Container, node: &str) -> Result<Vec<(String, String)>> {
    let value = |variable: &EnvVar| {
        if let Some(value) = &variable.value {
            return Ok(value.clone());
        }
        let source = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        match source.map(|field| field.field_path.as_str()) {
            Some("spec.nodeName") => Ok(node.to_owned()),
            _ => bail!("a variable from elsewhere: {variable:?}"),
        }
    };
    let variables = container.env.iter().flatten();
    variables.map(|variable| Ok((variable.name.clone(), value(variable)?))).collect()
}

/// The arguments, with `$(NAME)` replaced.
fn arguments(container: &Container, node: &str) -> Result<Vec<String>> {
    let variables = environment(container, node)?;
    let expand = |argument: &String| {
        let replace = |text: String, (name, value): &(String, String)| {
            text.replace(&format!("$({name})"), value)
        };
        variables.iter().fold(argument.clone(), replace)
    };
    Ok(container.args.iter().flatten().map(expand).collect())
}

fn pod_seccomp(context: Option<&PodSecurityContext>) -> Result<Option<SeccompProfile>> {
    let Some(context) = context else { return Ok(None) };
    let seccomp_profile = context.seccomp_profile.clone();
    let known = PodSecurityContext { seccomp_profile, ..PodSecurityContext::default() };
    ensure!(*context == known, "a field of the pod's context that this test does not know");
    Ok(known.seccomp_profile)
}

/// What the kubelet hands to the runtime for a security context.
fn security_context(
    context: SecurityContext,
    pod_seccomp: Option<SeccompProfile>,
    namespaces: cri::NamespaceOption,
) -> Result<cri::LinuxContainerSecurityContext> {
    let SecurityContext {
        allow_privilege_escalation,
        capabilities,
        privileged,
        read_only_root_filesystem,
        run_as_group,
        run_as_user,
        seccomp_profile,
        ..
    } = context.clone();
    let known = SecurityContext {
        allow_privilege_escalation,
        capabilities: capabilities.clone(),
        privileged,
        read_only_root_filesystem,
        run_as_group,
        run_as_user,
        seccomp_profile: seccomp_profile.clone(),
        ..SecurityContext::default()
    };
    ensure!(context == known, "a field of the container's context that this test does not know");
    let privileged = privileged == Some(true);
    let seccomp = match seccomp_profile.or(pod_seccomp).map(|profile| profile.type_).as_deref() {
        Some("RuntimeDefault") => cri::RUNTIME_DEFAULT,
        None | Some("Unconfined") => cri::UNCONFINED,
        Some(other) => bail!("a seccomp profile that this test does not know: {other}"),
    };
    let capabilities = capabilities.unwrap_or_default();
    let words = |paths: &[&str]| {
        if privileged { Vec::new() } else { paths.iter().map(|&path| path.to_owned()).collect() }
    };
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
        }),
        privileged,
        namespace_options: Some(namespaces),
        run_as_user: run_as_user.map(|value| cri::Int64Value { value }),
        run_as_group: run_as_group.map(|value| cri::Int64Value { value }),
        readonly_rootfs: read_only_root_filesystem == Some(true),
        no_new_privs: allow_privilege_escalation == Some(false),
        masked_paths: words(&MASKED),
        readonly_paths: words(&READ_ONLY),
        seccomp: Some(cri::SecurityProfile { profile_type: seccomp }),
    })
}
