//! The guide for clusters of kubeadm, there and back.

use anyhow::Result;
use shunt_fake_apiserver::Kubernetes;

use crate::shell::Shell;
use crate::{SHARED, read, script};

const GUIDE: &str = "deploy/guides/kubeadm.md";

/// What kubeadm makes, as far as the guide reads or changes it.
const CLUSTER: &str = include_str!("kubeadm.yaml");

/// Prints how the nodes of kube-proxy are chosen.
const KUBE_PROXYS_NODES: &str =
    "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.affinity}'";

pub(crate) fn there_and_back(kubernetes: &Kubernetes) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    let follow = |beginning: &str| shell.run(&script(GUIDE, beginning)?);
    let move_node =
        |beginning: &str| shell.run(&script(SHARED, beginning)?.replace("NODE", "node-1"));
    shell.write("cluster.yaml", CLUSTER)?;
    shell.run("kubectl apply -f cluster.yaml")?;

    let server = follow("kubectl -n kube-system get configmap kube-proxy")?;
    assert_eq!(server.trim(), "server: https://192.0.2.1:6443");
    move_node("kubectl -n kube-system get daemonset kube-proxy")?;
    move_node("kubectl -n kube-system patch daemonset kube-proxy")?;
    assert!(shell.run(KUBE_PROXYS_NODES)?.contains(r#"{"key":"shunt","operator":"DoesNotExist"}"#));
    // In place of helm, what it renders.
    let rendered = read("tests/fixtures/chart/kubeadm.yaml")?;
    shell.write("shunt.yaml", &rendered)?;
    shell.run("kubectl apply -f shunt.yaml")?;
    move_node("kubectl label node NODE shunt=yes")?;
    assert_eq!(shell.run("kubectl get nodes -l shunt -o name")?, "node/node-1\n");

    // The rest of that script is helm's.
    let remove = script(SHARED, "kubectl -n kube-system delete daemonset kube-proxy")?;
    shell.run(remove.lines().next().unwrap_or_default())?;
    // Twice: an administrator who is not sure runs it again.
    for _ in 0..2 {
        follow("kubectl -n kube-system get configmap kubeadm-config")?;
        let kept = shell.run(
            "kubectl -n kube-system get configmap kubeadm-config \
                 -o jsonpath='{.data.ClusterConfiguration}'",
        )?;
        assert!(kept.contains("\nproxy:\n  disabled: true\n"), "{kept}");
        assert_eq!(kept.matches("proxy:").count(), 1, "{kept}");
        for line in ["  dnsDomain: cluster.local", "kubernetesVersion: v1.36.2", "scheduler: {}"] {
            assert!(kept.lines().any(|it| it == line), "{line} is gone: {kept}");
        }
    }

    shell.run("kubectl label node node-1 shunt-")?;
    shell.run("kubectl apply -f kube-proxy.yaml")?;
    assert_eq!(shell.run(KUBE_PROXYS_NODES)?, "", "kube-proxy comes back on every node");
    Ok(())
}
