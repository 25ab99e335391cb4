//! The image of `cargo xtask image` in a container as a kubelet starts it: with containerd, and with
//! the volumes, arguments and the security context of the rendered chart.
//!
//! `SHUNT_IMAGE` names the archive of the image; `cargo xtask container-test` makes it and runs this.

mod containerd;
mod cri;
mod pod;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Capabilities;
use serde_json::Value;
use shunt_fake_apiserver::{Alone, Gate, Standin, TOKEN, run_trials, trial};
use shunt_testbed::{
    Echo, EndpointSlice, Host, Node, Protocol, Service, Topology, http_get, patience,
};

use containerd::Containerd;
use pod::{Pod, Question, Rendered};

/// The archive of the image.
const IMAGE: &str = "SHUNT_IMAGE";
/// The default values of the chart.
const RENDERED: &str = "deploy/kustomize/base/shunt.yaml";
/// The default configuration file of the chart.
const CONFIG: &str = "config.conf";
/// CAP_NET_ADMIN, as a bit.
const NET_ADMIN: u64 = 1 << 12;
/// How long the agent may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(30);
const TARGET: u16 = 8080;
const CLUSTER_IP: &str = "10.96.0.10:80";
const LOCALHOST: &str = "127.0.0.1:30080";
const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];
/// So many connections that each pod gets one.
const MANY: usize = 80;

fn main() -> ExitCode {
    let image = || {
        let archive = env::var_os(IMAGE).map(PathBuf::from).filter(|archive| archive.is_file());
        archive.ok_or_else(|| format!("{IMAGE} names no image; run `cargo xtask container-test`"))
    };
    let ready = image().and_then(|_| Containerd::missing().map_or(Ok(()), Err));
    let tests: [Alone; 3] = [
        ("agent_in_a_container_serves_the_node", agent_serves_the_node),
        ("agent_without_its_capability_names_it", agent_without_capability_names_it),
        ("other_users_get_no_capability", other_users_get_no_capability),
    ];
    run_trials(1, tests.map(|(name, body)| trial(name, ready.clone(), body)).into())
}

/// A node of a cluster: the testbed, an API server, and a containerd on the node.
struct Cluster {
    lab: Topology,
    api: Standin,
    gate: Gate,
    containerd: Containerd,
    rendered: Rendered,
    _servers: Vec<Echo>,
}

impl Cluster {
    fn new() -> Result<Self> {
        let lab = Topology::new()?;
        let servers = lab.serve(TARGET)?;
        let api = Standin::start()?;
        api.put(&Node::of(&lab.node).to_string())?;
        api.put(&service().to_string())?;
        api.put(&slices(&[&lab.pod1, &lab.pod2, &lab.pod3]))?;
        let address = api.address();
        let gate = Gate::open(&lab.node, move || std::net::TcpStream::connect(address))?;
        let mut rendered = Rendered::read(RENDERED)?;
        rendered.set_env("KUBERNETES_SERVICE_HOST", &gate.address().ip().to_string())?;
        rendered.set_env("KUBERNETES_SERVICE_PORT", &gate.address().port().to_string())?;
        let containerd = Containerd::start(&lab.node)?;
        let archive = env::var_os(IMAGE).context("no image")?;
        let name = rendered.agent()?.image.clone().context("no image")?;
        containerd.import(Path::new(&archive), &name)?;
        Ok(Self { lab, api, gate, containerd, rendered, _servers: servers })
    }

    /// Starts the pod of the chart.
    fn start(&self) -> Result<Running<'_>> {
        ensure!(self.gate.address().is_ipv4(), "an address that needs brackets");
        let authority = self.api.authority().context("no TLS")?;
        let credentials = [("token", TOKEN), ("ca.crt", &authority), ("namespace", "kube-system")];
        let (cri, node) = (&self.containerd.cri, &self.lab.node.name);
        let folder = self.containerd.folder().join("pod");
        let pod = Pod::new(&self.rendered, node, &self.containerd.cgroup(), &credentials, &folder)?;
        let sandbox = cri.run_pod_sandbox(&pod.sandbox)?;
        let container =
            cri.create_container(&sandbox, pod.container.clone(), pod.sandbox.clone())?;
        cri.start_container(&container)?;
        Ok(Running { cluster: self, pod, sandbox, container })
    }
}

/// A pod that was started.
struct Running<'a> {
    cluster: &'a Cluster,
    pod: Pod,
    sandbox: String,
    container: String,
}

impl Running<'_> {
    /// Waits for a condition, while the agent runs.
    fn wait(&self, what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !condition()? {
            ensure!(self.exit_code()?.is_none(), "the agent ended\n{}", self.pod.log());
            ensure!(start.elapsed() < patience(PATIENCE), "no {what}\n{}", self.pod.log());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until each probe of the pod succeeds.
    fn wait_ready(&self) -> Result<()> {
        for probe in self.cluster.rendered.probes()? {
            match &probe {
                Question::Command(words) => {
                    self.wait(&words.join(" "), || Ok(self.exec(words)?.1 == 0))?;
                }
                Question::Http(port, path) => {
                    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                    let answer = || http_get(&self.cluster.lab.node, to, path);
                    self.wait(path, || Ok(answer().is_ok_and(|answer| answer.status == 200)))?;
                }
            }
        }
        Ok(())
    }

    /// Runs a command in the container. Returns what it printed, and its exit code.
    fn exec(&self, words: &[impl AsRef<str>]) -> Result<(String, i32)> {
        let answer = self.cluster.containerd.cri.exec_sync(&self.container, words)?;
        let text = [answer.stdout, answer.stderr].concat();
        Ok((String::from_utf8_lossy(&text).into_owned(), answer.exit_code))
    }

    fn exit_code(&self) -> Result<Option<i32>> {
        let status = self.cluster.containerd.cri.container_status(&self.container)?;
        Ok((status.state == cri::EXITED).then_some(status.exit_code))
    }

    /// Waits until the container has ended. Returns its exit code.
    fn wait_for_end(&self) -> Result<i32> {
        let start = Instant::now();
        loop {
            if let Some(code) = self.exit_code()? {
                return Ok(code);
            }
            ensure!(start.elapsed() < patience(PATIENCE), "it does not end\n{}", self.pod.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process number of the agent, outside of the container.
    fn process(&self) -> Result<u64> {
        let mut status = Command::new(env!("CARGO_BIN_EXE_shunt"));
        status.args(["status", "--output=json", "--netns"]).arg(self.cluster.lab.node.path());
        let output = status.output()?;
        let status: Value = serde_json::from_slice(&output.stdout)?;
        status["process"].as_u64().context("no process")
    }
}

/// With a node port.
fn service() -> Service {
    let service = Service::new("web").cluster_ips(&["10.96.0.10", "fd00:96::10"]);
    service.spec("ipFamilyPolicy: RequireDualStack").node_port("tcp", Protocol::Tcp, 80, 30080)
}

fn slices(hosts: &[&Host]) -> String {
    EndpointSlice::pair("web", |slice| slice.port("tcp", Protocol::Tcp, TARGET).hosts(hosts))
}

fn agent_serves_the_node() -> Result<()> {
    let cluster = Cluster::new()?;
    let (lab, api) = (&cluster.lab, &cluster.api);
    let running = cluster.start()?;
    running.wait_ready()?;
    let pod = || lab.from(&lab.pod1);
    for to in [CLUSTER_IP, "[fd00:96::10]:80"] {
        pod().tcp(to).times(MANY).reaches(&PODS);
    }
    lab.from(&lab.client).tcp("192.0.2.10:30080").times(MANY).reaches(&PODS).source_masqueraded();
    let tables = lab.node.output("nft", &["list", "tables"])?;
    for table in ["table ip shunt\n", "table ip6 shunt\n"] {
        ensure!(tables.contains(table), "no {table} in\n{tables}");
    }
    api.put(&slices(&[&lab.pod2]))?;
    pod().tcp(CLUSTER_IP).eventually().reaches(&["pod-2"]);

    let (status, code) = running.exec(&["shunt", "status"])?;
    ensure!(code == 0 && status.contains("1 Service"), "{code}\n{status}");
    let (explained, code) = running.exec(&["shunt", "explain", "--to", CLUSTER_IP])?;
    ensure!(code == 0 && explained.contains("10.244.0.12"), "{code}\n{explained}");
    has_only_what_the_chart_gives(&running)?;

    // The kubelet replaces the files of a changed ConfigMap. The proxy needs no other capability.
    let addition = "mode: nftables\nnodePortAddresses: [primary, localhost]\n";
    let content = cluster.rendered.config.iter().map(|(name, text)| {
        (name.clone(), if name == CONFIG { format!("{text}{addition}") } else { text.clone() })
    });
    running.pod.update_config(&content.collect::<BTreeMap<_, _>>())?;
    for to in [LOCALHOST, "[::1]:30080"] {
        lab.from(&lab.node).tcp(to).eventually().reaches(&["pod-2"]);
    }

    // Without the flags, of which the kernel clears that of the owner.
    let content = || -> Result<String> {
        let rules = lab.node.output("nft", &["--stateless", "list", "table", "ip", "shunt"])?;
        Ok(rules.split_once("\n\n").context("no set")?.1.to_owned())
    };
    let rules = content()?;
    let grace = cluster.rendered.pod.termination_grace_period_seconds.context("no grace period")?;
    let stopping = Instant::now();
    cluster.containerd.cri.stop_container(&running.container, grace)?;
    let took = stopping.elapsed();
    assert_eq!(running.wait_for_end()?, 0, "{}", running.pod.log());
    ensure!(took < Duration::from_secs(u64::try_from(grace)?) / 2, "the end took {took:?}");
    assert_eq!(content()?, rules);
    pod().tcp(CLUSTER_IP).reaches(&["pod-2"]);
    cluster.containerd.cri.remove_pod_sandbox(&running.sandbox)
}

/// The kernel's view of the agent's process: one capability, a seccomp filter, no new privileges, and
/// no file written.
fn has_only_what_the_chart_gives(running: &Running<'_>) -> Result<()> {
    let process = PathBuf::from(format!("/proc/{}", running.process()?));
    let status = fs::read_to_string(process.join("status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.with_context(|| format!("no {name} in\n{status}"))
    };
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(u64::from_str_radix(field(set)?, 16)?, NET_ADMIN, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(field(set)?, 16)? & !NET_ADMIN, 0, "{set}");
    }
    assert_eq!((field("NoNewPrivs")?, field("Seccomp")?), ("1", "2"));
    assert_eq!(field("Uid")?, "0\t0\t0\t0");
    let mounts = fs::read_to_string(process.join("mountinfo"))?;
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let root = root.into_iter().find(|fields| fields.get(4) == Some(&"/")).context("no root")?;
    ensure!(root[5].split(',').any(|option| option == "ro"), "{root:?}");
    // The file systems that the agent could write to.
    for folder in ["dev", "dev/shm"] {
        for entry in fs::read_dir(process.join("root").join(folder))? {
            let entry = entry?;
            ensure!(!entry.file_type()?.is_file(), "a file: {}", entry.path().display());
        }
    }
    Ok(())
}

fn agent_without_capability_names_it() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let context = cluster.rendered.agent_mut()?.security_context.as_mut().context("no context")?;
    context.capabilities = Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) });
    assert_refuses_to_start(&cluster)
}

/// Kubernetes adds capabilities to the bounding set. Processes of other users than root get them from
/// files only, which is what `allowPrivilegeEscalation: false` forbids.
fn other_users_get_no_capability() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let context = cluster.rendered.agent_mut()?.security_context.as_mut().context("no context")?;
    (context.run_as_user, context.run_as_group) = (Some(65532), Some(65532));
    assert_refuses_to_start(&cluster)
}

fn assert_refuses_to_start(cluster: &Cluster) -> Result<()> {
    let running = cluster.start()?;
    assert_eq!(running.wait_for_end()?, 1, "{}", running.pod.log());
    let log = running.pod.log();
    ensure!(log.contains("CAP_NET_ADMIN"), "{log}");
    assert_eq!(cluster.lab.node.output("nft", &["list", "tables"])?, "");
    cluster.containerd.cri.remove_pod_sandbox(&running.sandbox)
}
