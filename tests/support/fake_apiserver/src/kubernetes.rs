//! The real thing: kube-apiserver and etcd in a network namespace of their own.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use hyper::Method;
use serde_json::Value;
use shunt_testbed::{HEALTH_PORT, Netns, Program, TempDir, eventually, http_get};

use crate::certs::{Authority, key_pair};
use crate::client::{Client, Reply};
use crate::gate::Gate;
use crate::kubeconfig::Kubeconfig;
use crate::object::{Key, parse};
use crate::role::Role;
use crate::standin::TOKEN;

/// The variable that names the folder with the programs, as the tools of the Kubernetes project
/// know it.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
const API_PORT: u16 = 6443;
const ADMIN_TOKEN: &str = "admin-token";

/// A kube-apiserver with an etcd, and nothing that acts on what is in it: no controllers, no
/// scheduler, no nodes.
pub struct Kubernetes {
    netns: Netns,
    assets: PathBuf,
    scratch: TempDir,
    authority: Authority,
    /// With all rights.
    kubeconfig: Kubeconfig,
    admin: Client,
    server: Mutex<Option<Program>>,
    _etcd: Program,
}

impl Kubernetes {
    /// The folder with the programs, or why there is none.
    pub fn installed() -> Result<PathBuf, String> {
        Self::installed_with(&[])
    }

    /// The folder with the programs and with these, or why there is none.
    pub fn installed_with(others: &[&str]) -> Result<PathBuf, String> {
        let Some(folder) = env::var_os(ASSETS).map(PathBuf::from) else {
            return Err(format!("{ASSETS} names no folder with kube-apiserver and etcd"));
        };
        for program in ["kube-apiserver", "etcd"].iter().chain(others) {
            if !folder.join(program).is_file() {
                return Err(format!("{ASSETS}: no {program} in {}", folder.display()));
            }
        }
        Ok(folder)
    }

    /// Starts them from the folder they are in, and waits until they are ready.
    pub fn start(assets: &Path) -> Result<Self> {
        let netns = Netns::new()?;
        netns.ip("link set lo up")?;
        let scratch = TempDir::new()?;
        let authority = Authority::new()?;
        let folder = scratch.path();
        let (server, (signer, signed)) = (authority.server()?, key_pair()?);
        let role = Role::deployed()?;
        let files = [
            ("ca.crt", authority.pem()),
            ("server.crt", server.certificate),
            ("server.key", server.key),
            ("signer.key", signer),
            ("signer.pub", signed),
            (
                "tokens.csv",
                format!("{ADMIN_TOKEN},admin,admin,system:masters\n{TOKEN},{},agent\n", role.user),
            ),
        ];
        for (name, content) in files {
            fs::write(folder.join(name), content)?;
        }
        let etcd = [
            format!("--data-dir={}", folder.join("etcd").display()),
            // The data need not survive this machine.
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let etcd = program(&netns, &assets.join("etcd"), &etcd)?;
        let kubeconfig = Kubeconfig::new(&format!("https://127.0.0.1:{API_PORT}"))?;
        let kubeconfig = kubeconfig.authority(&authority.pem())?.token(ADMIN_TOKEN)?;
        let admin = Client::new(connector(&netns), Some(&authority.pem()), ADMIN_TOKEN)?;
        let assets = assets.to_owned();
        let server = Mutex::new(None);
        let kubernetes =
            Self { netns, assets, scratch, authority, kubeconfig, admin, server, _etcd: etcd };
        kubernetes.start_server()?;
        for (collection, object) in &role.objects {
            kubernetes.done(Method::POST, collection, Some(object))?;
        }
        Ok(kubernetes)
    }

    /// Kills kube-apiserver and starts it again, with the same data.
    pub fn restart(&self) -> Result<()> {
        drop(self.server()?.take());
        self.start_server()
    }

    /// What makes connections to it.
    pub fn connector(&self) -> impl Fn() -> io::Result<TcpStream> + Send + Sync + use<> {
        connector(&self.netns)
    }

    /// A way to it from a network namespace, and a kubeconfig for the agent or kube-proxy there.
    pub fn reach(&self, netns: &Netns) -> Result<(Gate, Kubeconfig)> {
        let gate = Gate::open(netns, self.connector())?;
        let kubeconfig = Kubeconfig::new(&format!("https://{}", gate.address()))?;
        Ok((gate, kubeconfig.authority(&self.authority.pem())?.token_file(TOKEN)?))
    }

    /// Starts kube-proxy for node-1 with these fields of its configuration; its files are in a folder.
    pub fn kube_proxy(&self, netns: &Netns, settings: &str, folder: &Path) -> Result<Program> {
        let file = folder.join("kube-proxy.yaml");
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        fs::write(&file, format!("{head}{settings}"))?;
        let arguments =
            [format!("--config={}", file.display()), "--hostname-override=node-1".to_owned()];
        program(netns, &self.assets.join("kube-proxy"), &arguments)
    }

    /// Waits until a kube-proxy in this network namespace is healthy.
    pub fn wait_for_kube_proxy(kube_proxy: &Program, netns: &Netns) -> Result<()> {
        let address = ([127, 0, 0, 1], HEALTH_PORT).into();
        eventually("a healthy kube-proxy", || {
            ensure!(kube_proxy.is_running(), "kube-proxy has ended");
            let answer = http_get(netns, address, "/healthz");
            Ok(answer.is_ok_and(|answer| answer.status == 200).then_some(()))
        })
        .with_context(|| kube_proxy.log())
    }

    /// The certificate of its authority in PEM. It takes [`TOKEN`], with the rights that the chart
    /// gives the agent.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Makes or replaces the objects of a text of YAML documents.
    pub fn put(&self, manifest: &str) -> Result<()> {
        parse(manifest)?.iter().try_for_each(|object| self.put_object(object))
    }

    /// Deletes an object.
    pub fn delete(&self, key: &Key) -> Result<()> {
        self.done(Method::DELETE, &key.path(), None).map(drop)
    }

    /// Deletes everything that tests make.
    pub fn clear(&self) -> Result<()> {
        for path in [
            // The server's own comes back, some time later.
            "/api/v1/namespaces/default/services?fieldSelector=metadata.name!%3Dkubernetes",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            "/apis/events.k8s.io/v1/namespaces/default/events",
            "/api/v1/nodes",
        ] {
            self.done(Method::DELETE, path, None)?;
        }
        Ok(())
    }

    /// The process of kube-apiserver.
    pub fn pid(&self) -> Result<i32> {
        let server = self.server()?;
        Ok(server.as_ref().context("kube-apiserver does not run")?.pid())
    }

    /// The network namespace of the programs, in which the server listens on a loopback address.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The port on which the server listens.
    pub fn port(&self) -> u16 {
        API_PORT
    }

    /// The URL of the server in its network namespace.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{API_PORT}")
    }

    /// The folder with the programs.
    pub fn assets(&self) -> &Path {
        &self.assets
    }

    /// A program in the server's network namespace whose kubectl is that of the folder, with all
    /// rights.
    pub fn admin_command(&self, program: &str) -> Command {
        let mut command = self.netns.command(program);
        let mut path = OsString::from(&self.assets);
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path).env("KUBECONFIG", self.kubeconfig.path());
        command
    }

    /// A client with all rights.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    fn put_object(&self, object: &Value) -> Result<()> {
        let key = Key::of(object)?;
        let replaced = self.admin.call(Method::PUT, &key.path(), Some(object))?;
        match replaced.status {
            200 | 201 => {}
            404 => drop(self.done(Method::POST, &key.collection(), Some(object))?),
            _ => bail!("{key} is not taken: {replaced:?}"),
        }
        if object.get("status").is_some() {
            self.done(Method::PUT, &format!("{}/status", key.path()), Some(object))?;
        }
        Ok(())
    }

    fn done(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        let reply = self.admin.call(method.clone(), path, body)?;
        ensure!((200..300).contains(&reply.status), "{method} {path}: {reply:?}");
        Ok(reply)
    }

    fn server(&self) -> Result<std::sync::MutexGuard<'_, Option<Program>>> {
        self.server.lock().map_err(|_| anyhow::anyhow!("a restart has failed before"))
    }

    fn start_server(&self) -> Result<()> {
        let mut server = self.server()?;
        let (folder, program) = (self.scratch.path(), self.assets.join("kube-apiserver"));
        let running = self::program(&self.netns, &program, &arguments(folder))?;
        eventually("a ready kube-apiserver", || {
            ensure!(running.is_running(), "kube-apiserver has ended");
            let reply = self.admin.get("/readyz");
            Ok(reply.is_ok_and(|reply| reply.status == 200).then_some(()))
        })
        .with_context(|| running.log())?;
        *server = Some(running);
        Ok(())
    }
}

fn program(netns: &Netns, program: &Path, arguments: &[String]) -> Result<Program> {
    let mut command = netns.command(program);
    command.args(arguments);
    Program::start(command)
}

fn connector(netns: &Netns) -> impl Fn() -> io::Result<TcpStream> + Send + Sync + use<> {
    let netns = netns.clone();
    move || {
        netns
            .run(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, API_PORT))))
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// Loopback addresses cannot be endpoints. Privileged pods are allowed as in every cluster: kube-proxy's
/// own needs it.
fn arguments(folder: &Path) -> Vec<String> {
    let folder = folder.display();
    let arguments = format!(
        "--etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --secure-port={API_PORT}
        --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --cert-dir={folder}
        --tls-cert-file={folder}/server.crt --tls-private-key-file={folder}/server.key
        --client-ca-file={folder}/ca.crt --token-auth-file={folder}/tokens.csv
        --service-account-issuer=https://kubernetes
        --service-account-key-file={folder}/signer.pub
        --service-account-signing-key-file={folder}/signer.key
        --disable-admission-plugins=ServiceAccount --authorization-mode=RBAC
        --allow-privileged=true --service-cluster-ip-range=10.96.0.0/16,fd00:96::/108"
    );
    arguments.split_whitespace().map(str::to_owned).collect()
}
