//! `shunt diff --against kube-proxy` beside the real kube-proxy, in the modes that the kernel and
//! the installed programs allow.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Kubernetes, Program};
use shunt_testbed::{ManifestDir, Protocol, Scratch, Service, patience};

use crate::objects::{full, slices};
use crate::world::{ADDRESSES, CLUSTER_CIDR, Side, configuration, put_node};

/// How long kube-proxy may take until its rules are those of the objects.
const CONVERGENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// What the changed manifests differ in, of TCP ports.
const CHANGES: &str = "\
default/affine:tcp
  10.96.1.5:80/tcp, 198.51.100.5:80/tcp, 203.0.113.5:80/tcp, [2001:db8:51::5]:80/tcp, \
[2001:db8:113::5]:80/tcp, [fd00:96::1:5]:80/tcp, node port 30050/tcp (IPv4), \
node port 30050/tcp (IPv6)
  - session affinity of 10800 s
  + session affinity of 60 s
default/all:tcp
  10.96.1.1:80/tcp, 198.51.100.1:80/tcp, 203.0.113.1:80/tcp, node port 30010/tcp (IPv4)
  - 10.244.0.11:8080
  [2001:db8:51::1]:80/tcp, [2001:db8:113::1]:80/tcp, [fd00:96::1:1]:80/tcp, \
node port 30010/tcp (IPv6)
  - [fd00:244::11]:8080
default/empty:tcp
  10.96.1.4:80/tcp
  - reject
  + 10.244.0.11:8080
  + 10.244.0.12:8080
  + 10.244.1.21:8080
  198.51.100.4:80/tcp, 203.0.113.4:80/tcp, [2001:db8:51::4]:80/tcp, [2001:db8:113::4]:80/tcp, \
node port 30040/tcp (IPv4), node port 30040/tcp (IPv6): only in kube-proxy
  - reject
  [fd00:96::1:4]:80/tcp
  - reject
  + [fd00:244:1::21]:8080
  + [fd00:244::11]:8080
  + [fd00:244::12]:8080
default/local:tcp
  10.96.1.2:80/tcp
  - 10.244.0.11:8080
  198.51.100.2:80/tcp, 203.0.113.2:80/tcp, node port 30020/tcp (IPv4)
  - 10.244.0.11:8080
  + drop
  [2001:db8:51::2]:80/tcp, [2001:db8:113::2]:80/tcp, node port 30020/tcp (IPv6)
  - [fd00:244::11]:8080
  + drop
  [fd00:96::1:2]:80/tcp
  - [fd00:244::11]:8080
default/new:tcp
  10.96.1.10:80/tcp: only in shunt
  + 10.244.0.11:8080
  [fd00:96::1:a]:80/tcp: only in shunt
  + [fd00:244::11]:8080
default/unnamed
  10.96.1.77:80/tcp: only in kube-proxy
  - reject
";

/// kube-proxy in one of its modes, on a node where no agent runs.
struct Running<'a> {
    kubernetes: &'a Kubernetes,
    side: Side,
    kube_proxy: Program,
    manifests: ManifestDir,
    folder: Scratch,
}

/// The outcome of `shunt diff`.
#[derive(Debug)]
struct Diff {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl<'a> Running<'a> {
    fn new(kubernetes: &'a Kubernetes, mode: &str) -> Result<Self> {
        let side = Side::new("kube-proxy", kubernetes)?;
        put_node(kubernetes, None, &ADDRESSES)?;
        let folder = Scratch::new()?;
        let settings = configuration(&side, CLUSTER_CIDR);
        let settings = settings.replace("mode: nftables", &format!("mode: {mode}"));
        let file = folder.path().join("config.yaml");
        std::fs::write(
            &file,
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                 iptables: {{minSyncPeriod: 1ms, syncPeriod: 1s}}\n{settings}"
            ),
        )?;
        let kube_proxy = Program::start(
            &side.lab.node,
            &kubernetes.assets().join("kube-proxy"),
            &[
                format!("--config={}", file.display()),
                format!("--hostname-override={}", side.lab.node.name),
                "-v=2".to_owned(),
            ],
            folder.path(),
        )?;
        Ok(Self { kubernetes, side, kube_proxy, manifests: ManifestDir::new()?, folder })
    }

    /// Writes the objects of the API server as manifests, but for Services of these names and their
    /// slices.
    fn export(&self, without: &[&str]) -> Result<()> {
        let lists = [
            ("Service", "v1", "/api/v1/services"),
            ("EndpointSlice", "discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1/endpointslices"),
            ("Node", "v1", "/api/v1/nodes"),
            ("ServiceCIDR", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1/servicecidrs"),
        ];
        for (kind, version, path) in lists {
            let reply = self.kubernetes.admin().get(path)?;
            ensure!(reply.status == 200, "{path}: {reply:?}");
            let items = reply.body["items"].as_array().context("no items")?;
            let left_out = |item: &&Value| {
                let label = &item["metadata"]["labels"]["kubernetes.io/service-name"];
                [&item["metadata"]["name"], label]
                    .into_iter()
                    .any(|name| without.iter().any(|it| name == it))
            };
            let items: Vec<Value> = items
                .iter()
                .filter(|item| !left_out(item))
                .map(|item| {
                    let mut item = item.clone();
                    item["kind"] = kind.into();
                    item["apiVersion"] = version.into();
                    item
                })
                .collect();
            let list = json!({"kind": "List", "apiVersion": "v1", "items": items});
            self.manifests.write(&format!("{}.json", kind.to_lowercase()), list)?;
        }
        Ok(())
    }

    fn diff(&self, arguments: &[&str]) -> Result<Diff> {
        let node = &self.side.lab.node;
        let output = Command::new(env!("CARGO_BIN_EXE_shunt"))
            .args(["diff", "--against=kube-proxy", "--netns"])
            .arg(node.path())
            .arg("--config")
            .arg(self.folder.path().join("config.yaml"))
            .arg("--manifests")
            .arg(self.manifests.path())
            .arg(format!("--hostname-override={}", node.name))
            .args(arguments)
            .output()?;
        Ok(Diff {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Waits until nothing differs from the objects of the API server.
    fn settle(&self) -> Result<()> {
        self.export(&[])?;
        let start = Instant::now();
        loop {
            let diff = self.diff(&[])?;
            if diff.code == Some(0) {
                ensure!(diff.stdout.starts_with("no differences: "), "{diff:?}");
                return Ok(());
            }
            ensure!(
                start.elapsed() < patience(CONVERGENCE) && !self.kube_proxy.has_ended(),
                "{:?}\n{}\n{}\n{}",
                diff.code,
                diff.stdout,
                diff.stderr,
                self.kube_proxy.log()?
            );
            thread::sleep(POLL);
        }
    }

    /// Asserts that the differences of TCP ports are these.
    fn expect(&self, expected: &str) -> Result<()> {
        let diff = self.diff(&[])?;
        ensure!(diff.code == Some(1), "{diff:?}");
        let blocks = diff.stdout.split("\n\n").skip(1).map(str::trim_end);
        let is_tcp = |block: &&str| {
            let label = block.lines().next().unwrap_or_default();
            !label.ends_with(":udp") && !label.ends_with(":sctp")
        };
        let found = blocks.filter(is_tcp).collect::<Vec<_>>().join("\n");
        ensure!(found == expected.trim_end(), "expected:\n{expected}\nfound:\n{found}");
        Ok(())
    }

    fn put(&self, object: impl std::fmt::Display) -> Result<()> {
        self.kubernetes.put(&object.to_string())
    }

    /// Every kind of frontend and outcome is read, and what differs is found.
    fn check(&self) -> Result<()> {
        let lab = &self.side.lab;
        let local = "externalTrafficPolicy: Local";
        let all = [&lab.pod1, &lab.pod2, &lab.pod3];
        self.put(full("all", 1))?;
        self.put(slices("all", &all))?;
        self.put(full("local", 2).spec(local))?;
        self.put(slices("local", &[&lab.pod1, &lab.pod3]))?;
        self.put(full("away", 3).spec(local).spec("internalTrafficPolicy: Local"))?;
        self.put(slices("away", &[&lab.pod3]))?;
        self.put(full("empty", 4))?;
        let affinity = |seconds: u16| {
            format!(
                "sessionAffinity: ClientIP\n  \
                 sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}"
            )
        };
        self.put(full("affine", 5).spec(&affinity(10_800)))?;
        self.put(slices("affine", &[&lab.pod1, &lab.pod3]))?;
        self.put(full("affine-local", 6).spec(&affinity(60)).spec(local))?;
        self.put(slices("affine-local", &[&lab.pod3]))?;
        let ranges = "loadBalancerSourceRanges: [10.0.0.0/8, 192.0.2.10/32, '2001:db8:2::/64']";
        self.put(full("ranges", 7).spec(ranges))?;
        self.put(slices("ranges", &all))?;
        self.put(Service::new("unnamed").cluster_ips(&["10.96.1.77"]).port("", Protocol::Tcp, 80))?;
        self.settle()?;

        // The manifests differ from what kube-proxy knows.
        self.export(&["all", "local", "empty", "affine", "unnamed"])?;
        let tcp = |name: &str, number: u8| {
            Service::new(name)
                .cluster_ips(&[&format!("10.96.1.{number}"), &format!("fd00:96::1:{number:x}")])
                .port("tcp", Protocol::Tcp, 80)
        };
        self.manifests
            .write("all.yaml", format!("{}{}", full("all", 1), slices("all", &all[1..])))?;
        let local = full("local", 2).spec(local);
        self.manifests.write("local.yaml", format!("{local}{}", slices("local", &[&lab.pod3])))?;
        self.manifests
            .write("empty.yaml", format!("{}{}", tcp("empty", 4), slices("empty", &all)))?;
        let affine = full("affine", 5).spec(&affinity(60));
        let affine_slices = slices("affine", &[&lab.pod1, &lab.pod3]);
        self.manifests.write("affine.yaml", format!("{affine}{affine_slices}"))?;
        let new = tcp("new", 10);
        self.manifests.write("new.yaml", format!("{new}{}", slices("new", &[&lab.pod1])))?;
        self.expect(CHANGES)
    }
}

/// The nftables mode.
pub(crate) fn diff_against_nftables(kubernetes: &Kubernetes) -> Result<()> {
    Running::new(kubernetes, "nftables")?.check()
}

/// The iptables mode, with `iptables-nft`.
pub(crate) fn diff_against_iptables(kubernetes: &Kubernetes) -> Result<()> {
    Running::new(kubernetes, "iptables")?.check()
}
