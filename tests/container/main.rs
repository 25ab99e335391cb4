//! The image of `cargo xtask image` in containerd, with the volumes, arguments, environment and the security
//! context of the rendered chart.
//!
//! `SHUNT_IMAGE` names the archive of the image; `cargo xtask container-test` makes it and runs this.

mod containerd;

use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt::source::spanned_yaml;
use shunt_fake_apiserver::{Standin, TOKEN, run_trials, trial};
use shunt_testbed::{EndpointSlice, Node, Service, Topology, http_get};

use containerd::Containerd;

/// The archive of the image.
const IMAGE: &str = "SHUNT_IMAGE";
/// The default values of the chart.
const RENDERED: &str = "deploy/kustomize/base/shunt.yaml";
/// The name of the container.
const NAME: &str = "shunt";
/// CAP_NET_ADMIN, as a bit.
const NET_ADMIN: u64 = 1 << 12;
/// All capabilities that containers have by default.
const DROPPED: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
const TARGET: u16 = 8080;
const CLUSTER_IP: &str = "10.96.0.10:80";
const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];
/// So many connections that each pod gets one.
const MANY: usize = 80;

fn main() -> ExitCode {
    let ready = match archive() {
        None => Err(format!("{IMAGE} names no image; run `cargo xtask container-test`")),
        Some(_) => Containerd::missing().map_or(Ok(()), Err),
    };
    let name = "agent_in_a_container_serves_the_node";
    run_trials(1, vec![trial(name, ready, agent_serves_the_node)])
}

fn archive() -> Option<PathBuf> {
    env::var_os(IMAGE).map(PathBuf::from).filter(|archive| archive.is_file())
}

/// The pod of the chart, and its configuration file.
fn rendered() -> Result<(Value, String)> {
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(RENDERED))?;
    let objects: Vec<Value> =
        spanned_yaml::documents(&text)?.map(|it| Ok(it?.value())).collect::<Result<_>>()?;
    let of = |kind: &str| objects.iter().find(|it| it["kind"] == kind).context("no such object");
    let config = of("ConfigMap")?["data"]["config.conf"].as_str().context("no configuration")?;
    Ok((of("DaemonSet")?["spec"]["template"]["spec"].clone(), config.to_owned()))
}

/// Starts the container of the chart, as a kubelet does.
fn start(containerd: &Containerd, lab: &Topology, pod: &Value, server: SocketAddr) -> Result<()> {
    let agent = &pod["containers"][0];
    // What the flags below stand for; the rest is in `deploy::manifests`.
    let mounts = json!([
        {"name": "config", "mountPath": "/etc/shunt", "readOnly": true},
        {"name": "net-sysctls", "mountPath": "/host/proc/sys/net"},
    ]);
    assert_eq!(agent["volumeMounts"], mounts);

    let mut words: Vec<String> = ["run", "--detach", "--snapshotter=native", "--net-host"]
        .into_iter()
        .chain(["--read-only", "--seccomp", "--cap-add=CAP_NET_ADMIN"])
        .map(str::to_owned)
        .collect();
    words.push(format!("--log-uri={}", containerd.log_uri()));
    words.extend(DROPPED.map(|name| format!("--cap-drop={name}")));
    let folder = containerd.folder().display();
    words.extend(
        [
            (format!("{folder}/config"), "/etc/shunt", "ro"),
            (format!("{folder}/account"), "/var/run/secrets/kubernetes.io/serviceaccount", "ro"),
            ("/proc/sys/net".to_owned(), "/host/proc/sys/net", "rw"),
        ]
        .map(|(from, to, mode)| {
            format!("--mount=type=bind,src={from},dst={to},options=rbind:{mode}")
        }),
    );
    let node = &lab.node.name;
    let names = agent["env"].as_array().context("no env")?;
    for name in names.iter().filter_map(|variable| variable["name"].as_str()) {
        let value = match name {
            "NODE_NAME" => node.clone(),
            "KUBERNETES_SERVICE_HOST" => server.ip().to_string(),
            "KUBERNETES_SERVICE_PORT" => server.port().to_string(),
            other => anyhow::bail!("{other} is not known here"),
        };
        words.push(format!("--env={name}={value}"));
    }
    words.extend([image(pod)?, NAME, "shunt"].map(str::to_owned));
    let arguments = agent["args"].as_array().context("no args")?.iter().filter_map(Value::as_str);
    words.extend(arguments.map(|argument| argument.replace("$(NODE_NAME)", node)));
    containerd.ctr(&words).map(drop)
}

fn image(pod: &Value) -> Result<&str> {
    pod["containers"][0]["image"].as_str().context("no image")
}

/// Runs a command in the container, and returns what it printed.
fn exec(containerd: &Containerd, words: &[&str]) -> Result<String> {
    let fifo_dir = containerd.fifo_dir();
    containerd.ctr(&[&["tasks", "exec", "--exec-id=command", &fifo_dir, NAME], words].concat())
}

/// Waits until each probe of the pod succeeds.
fn wait_ready(containerd: &Containerd, lab: &Topology, agent: &Value) -> Result<()> {
    let command = agent["startupProbe"]["exec"]["command"].as_array().context("no command")?;
    let command: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
    containerd.wait("start", || exec(containerd, &command).is_ok())?;
    for probe in ["livenessProbe", "readinessProbe"] {
        let get = &agent[probe]["httpGet"];
        let port = get["port"].as_u64().context("no port")?.try_into()?;
        let path = get["path"].as_str().context("no path")?;
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let is_well = || http_get(&lab.node, to, path).is_ok_and(|answer| answer.status == 200);
        containerd.wait(probe, is_well)?;
    }
    Ok(())
}

/// The process number of the agent, outside of the container.
fn process(lab: &Topology) -> Result<u64> {
    let mut status = Command::new(env!("CARGO_BIN_EXE_shunt"));
    let output =
        status.args(["status", "--output=json", "--netns"]).arg(lab.node.path()).output()?;
    let status: Value = serde_json::from_slice(&output.stdout)?;
    status["process"].as_u64().context("no process")
}

fn agent_serves_the_node() -> Result<()> {
    let lab = Topology::new()?;
    let _servers = lab.serve(TARGET)?;
    let api = Standin::start()?;
    api.put(&Node::of(&lab.node).to_string())?;
    api.put(&Service::everywhere("web", 10).to_string())?;
    api.put(&EndpointSlice::of("web", &lab.pods()))?;
    let (gate, _) = api.reach(&lab.node)?;
    let containerd = Containerd::start(&lab.node)?;
    let archive = archive().context("no image")?.display().to_string();
    containerd.ctr(&["images", "import", "--no-unpack", &archive])?;
    let (pod, config) = rendered()?;
    let folder = |name: &str| containerd.folder().join(name);
    for (name, text) in [
        ("config/config.conf", &*config),
        ("account/token", TOKEN),
        ("account/ca.crt", &api.authority().context("no TLS")?),
        ("account/namespace", "kube-system"),
    ] {
        fs::create_dir_all(folder(name).parent().context("no folder")?)?;
        fs::write(folder(name), text)?;
    }
    // What the image runs by itself is the agent.
    let options = ["--rm", "--snapshotter=native", "--net-host", &containerd.fifo_dir()];
    let bare = [&["run"][..], &options, &[image(&pod)?, "bare"]].concat();
    let error = containerd.ctr(&bare).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("no API server: give --kubeconfig FILE"), "{error}");
    start(&containerd, &lab, &pod, gate.address())?;
    wait_ready(&containerd, &lab, &pod["containers"][0])?;

    let client = || lab.from(&lab.pod1);
    for to in [CLUSTER_IP, "[fd00:96::10]:80"] {
        client().tcp(to).times(MANY).reaches(&PODS);
    }
    lab.from(&lab.client).tcp("192.0.2.10:30080").times(MANY).reaches(&PODS).source_masqueraded();
    api.put(&EndpointSlice::of("web", &[&lab.pod2]))?;
    client().tcp(CLUSTER_IP).eventually().reaches(&["pod-2"]);

    let status = exec(&containerd, &["shunt", "status"])?;
    ensure!(status.contains("1 Service"), "{status}");
    let explained = exec(&containerd, &["shunt", "explain", "--to", CLUSTER_IP])?;
    ensure!(explained.contains("10.244.0.12"), "{explained}");
    has_only_what_the_chart_gives(process(&lab)?)?;

    // A changed file reaches the container. The proxy needs no other capability.
    let addition = "mode: nftables\nnodePortAddresses: [primary, localhost]\n";
    fs::write(folder("config/new"), format!("{config}{addition}"))?;
    fs::rename(folder("config/new"), folder("config/config.conf"))?;
    for to in ["127.0.0.1:30080", "[::1]:30080"] {
        lab.from(&lab.node).tcp(to).eventually().reaches(&["pod-2"]);
    }

    // Without the flags, of which the kernel clears that of the owner.
    let content = || -> Result<String> {
        let rules = lab.node.output("nft", &["--stateless", "list", "table", "ip", "shunt"])?;
        Ok(rules.split_once("\n\n").context("no set")?.1.to_owned())
    };
    let rules = content()?;
    let grace = pod["terminationGracePeriodSeconds"].as_u64().context("no grace period")?;
    let stopping = Instant::now();
    containerd.ctr(&["tasks", "kill", "--signal=SIGTERM", NAME])?;
    let has_ended = || containerd.ctr(&["tasks", "list"]).is_ok_and(|it| it.contains("STOPPED"));
    containerd.wait("end", has_ended)?;
    let took = stopping.elapsed();
    ensure!(took < Duration::from_secs(grace) / 2, "the end took {took:?}");
    // It tells of an exit code other than 0.
    assert_eq!(containerd.ctr(&["tasks", "delete", NAME])?, "");
    assert_eq!(content()?, rules);
    client().tcp(CLUSTER_IP).reaches(&["pod-2"]);
    Ok(())
}

/// The kernel's view of the agent's process: one capability, a seccomp filter, no new privileges, and
/// no file written.
fn has_only_what_the_chart_gives(process: u64) -> Result<()> {
    let process = PathBuf::from(format!("/proc/{process}"));
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
