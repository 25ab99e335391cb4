//! The guides for kubeadm, EKS and Talos, there and back, and the cluster of the quick start.

use anyhow::Result;
use serde_json::Value;
use shunt_fake_apiserver::{Kubernetes, Shell};

use crate::{SHARED, read, script};

const QUICK_START: &str = "docs/quick-start.md";

/// A guide, what its platform makes of kube-proxy, and what the guide installs.
struct Move {
    guide: &'static str,
    cluster: &'static str,
    installed: &'static str,
    /// Lines that look something up, and a part of the answer.
    lookups: &'static [(&'static str, &'static str)],
    /// Keys that choose kube-proxy's nodes before and after the patch.
    before: &'static [&'static str],
    after: &'static [&'static str],
}

const KUBEADM: Move = Move {
    guide: "deploy/guides/kubeadm.md",
    cluster: include_str!("kubeadm.yaml"),
    installed: "tests/fixtures/chart/kubeadm.yaml",
    lookups: &[(
        "kubectl -n kube-system get configmap kube-proxy",
        "server: https://192.0.2.1:6443\n",
    )],
    before: &[],
    after: &["shunt"],
};

const EKS: Move = Move {
    guide: "deploy/guides/eks.md",
    cluster: include_str!("eks.yaml"),
    installed: "tests/fixtures/chart/eks.yaml",
    lookups: &[(
        "kubectl -n kube-system get configmap kube-proxy -o jsonpath",
        "server: https://0123456789abcdef.gr7.eu-central-1.eks.example.net\n",
    )],
    before: &["kubernetes.io/os", "kubernetes.io/arch", "eks.amazonaws.com/compute-type"],
    after: &["kubernetes.io/os", "kubernetes.io/arch", "eks.amazonaws.com/compute-type", "shunt"],
};

const TALOS: Move = Move {
    guide: "deploy/guides/talos.md",
    cluster: include_str!("talos.yaml"),
    installed: "tests/fixtures/chart/talos.yaml",
    lookups: &[],
    before: &[],
    after: &["shunt"],
};

pub(crate) fn kubeadm(kubernetes: &Kubernetes) -> Result<()> {
    there_and_back(kubernetes, &KUBEADM)?;
    let shell = Shell::new(kubernetes)?;
    // Twice: an administrator who is not sure runs it again.
    for _ in 0..2 {
        shell
            .run(&script(KUBEADM.guide, "kubectl -n kube-system get configmap kubeadm-config")?)?;
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
    Ok(())
}

pub(crate) fn eks(kubernetes: &Kubernetes) -> Result<()> {
    there_and_back(kubernetes, &EKS)
}

pub(crate) fn talos(kubernetes: &Kubernetes) -> Result<()> {
    there_and_back(kubernetes, &TALOS)
}

/// Returns the keys that a node must have, or must not have, for kube-proxy to run there.
fn keys_of_nodes(shell: &Shell<'_>) -> Result<Vec<String>> {
    let text = shell.run("kubectl -n kube-system get daemonset kube-proxy -o json")?;
    let daemon_set: Value = serde_json::from_str(&text)?;
    let expressions = &daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"][0]["matchExpressions"];
    let keys = expressions.as_array().into_iter().flatten();
    Ok(keys.filter_map(|it| it["key"].as_str().map(str::to_owned)).collect())
}

fn there_and_back(kubernetes: &Kubernetes, it: &Move) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    // A step that the guide does not change is that of all platforms.
    let step = |beginning: &str| script(it.guide, beginning).or_else(|_| script(SHARED, beginning));
    let follow = |beginning: &str| shell.run(&step(beginning)?.replace("NODE", "node-1"));
    shell.write("cluster.yaml", it.cluster)?;
    shell.run("kubectl apply -f cluster.yaml")?;
    for (line, answer) in it.lookups {
        let printed = follow(line)?;
        assert!(printed.contains(answer), "{line}: {printed}");
    }
    follow("kubectl -n kube-system get daemonset")?;
    assert_eq!(keys_of_nodes(&shell)?, it.before);
    follow("kubectl -n kube-system patch daemonset kube-proxy")?;
    assert_eq!(keys_of_nodes(&shell)?, it.after);
    // In place of helm, what it renders.
    shell.write("shunt.yaml", &read(it.installed)?)?;
    shell.run("kubectl apply -f shunt.yaml")?;
    follow("kubectl label node NODE shunt=yes")?;
    // The rest of that script is helm's.
    let remove = script(SHARED, "kubectl -n kube-system delete daemonset kube-proxy")?;
    shell.run(remove.lines().next().unwrap_or_default())?;

    shell.run("kubectl label node node-1 shunt-")?;
    shell.run("kubectl apply -f kube-proxy.yaml")?;
    assert_eq!(keys_of_nodes(&shell)?, it.before, "kube-proxy comes back on every node");
    shell.run(
        "kubectl -n kube-system delete daemonset kube-proxy
         kubectl delete -f shunt.yaml
         kubectl delete node node-1",
    )?;
    Ok(())
}

pub(crate) fn quick_start(kubernetes: &Kubernetes) -> Result<()> {
    let shell = Shell::new(kubernetes)?;
    shell.write("shunt.yaml", &read("tests/fixtures/chart/kind.yaml")?)?;
    shell.run("kubectl apply -f shunt.yaml")?;
    // Nothing runs its pods.
    let daemon_set = shell.run("kubectl -n kube-system get daemonset/shunt -o name")?;
    assert_eq!(daemon_set, "daemonset.apps/shunt\n");
    let own = script(QUICK_START, "kubectl create deployment web")?;
    shell.run(&own.replace("kubectl -n kube-system exec", "echo"))?;
    let ports = shell.run("kubectl get service web -o jsonpath='{.spec.ports[0].targetPort}'")?;
    assert_eq!(ports, "8080");
    shell.run("kubectl delete service,deployment web; kubectl delete -f shunt.yaml")?;
    Ok(())
}
