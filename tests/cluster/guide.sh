# The guide for kubeadm, there and back, with clients on each node all the time; in between a Job that checks a node, a
# second agent, a rollout, a drained and a rebooted node, an API server that restarts, and tokens that expire. Part of cluster.sh.
# shellcheck shell=bash

shunt_pod() { kubectl -n kube-system get pods -l app.kubernetes.io/name=shunt --field-selector "spec.nodeName=$1" -o name; }

# Fails if a client has met an error since the last call, or has no success.
nothing_was_lost() { # STEP
    local lines successes
    for pod in $(kubectl get pods -l app=client -o name); do
        lines=$(kubectl logs "$pod" --since-time="$since")
        successes=$(grep -c ok <<<"$lines" || true)
        echo "$1: $pod: $successes answers, $(grep -c lost <<<"$lines" || true) lost"
        [ "$successes" -gt 0 ] && ! grep lost <<<"$lines" || fail "$1: $pod lost connections"
    done
    since=$(date --utc +%FT%TZ)
}

second() { kubectl -n kube-system get pod second -o jsonpath="$1"; }

second_waits() {
    kubectl -n kube-system get events --field-selector involvedObject.name=second,reason=Unhealthy \
        -o jsonpath='{.items[*].message}' | grep 'Startup probe failed.*waits for its end'
}

containers_on_node_2() {
    kubectl get pods -A --field-selector spec.nodeName=node-2 \
        -o jsonpath='{range .items[*].status.containerStatuses[*]}{.containerID}{"\n"}{end}'
}

# The API has the state from before the boot until the kubelet has written its own.
node_2_is_booted() { ! grep --quiet --fixed-strings "$containers" <<<"$(containers_on_node_2)"; }

token_has_expired() { grep --ignore-case unauthorized <<<"$(kubectl --token "$token" get --raw /version 2>&1)"; }

guide() {
    local i pod since spec containers token
    say "clients on every node"
    kubectl apply -f "$here/client.yaml" >/dev/null
    kubectl rollout status daemonset/client --timeout=2m
    sleep 2
    since=$(date --utc +%FT%TZ)

    say "a Job that checks node-1"
    sed -e 's/node-to-check/node-1/' -e "s/replace-me.invalid/$api/" "$repository/deploy/guides/check.yaml" >"$state/check.yaml"
    kubectl apply -f "$state/check.yaml" >/dev/null
    kubectl -n kube-system wait --for=condition=Complete job/shunt-check-node-1 --timeout=1m \
        || fail "$(kubectl -n kube-system logs -l app.kubernetes.io/name=shunt-check --tail=-1)"
    kubectl delete -f "$state/check.yaml" >/dev/null

    say "one node after the other"
    kubectl -n kube-system get daemonset kube-proxy -o yaml >"$state/saved.yaml"
    kubectl -n kube-system patch daemonset kube-proxy --patch '
      {"spec": {"template": {"spec": {"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
          [{"matchExpressions": [{"key": "shunt", "operator": "DoesNotExist"}]}]}}}}}}}'
    kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=2m
    sed 's/^\( *\)kubernetes.io\/os: linux$/&\n\1shunt: "yes"/' "$rendered" | kubectl apply -f - >/dev/null
    for i in $(seq "$nodes"); do
        kubectl label node "node-$i" shunt=yes
        until_true 60 "a pod of shunt on node-$i" bash -c "[ -n \"\$($0 kubectl -n kube-system get pods \
            -l app.kubernetes.io/name=shunt --field-selector spec.nodeName=node-$i -o name)\" ]"
        kubectl -n kube-system wait --for=condition=Ready "$(shunt_pod "node-$i")" --timeout=2m
        kubectl -n kube-system exec "$(shunt_pod "node-$i")" -- shunt cleanup --kube-proxy --keep-own
        until_true 90 "a node without problems" kubectl -n kube-system exec "$(shunt_pod "node-$i")" -- shunt status
        inside "$control-node-$i" nft list tables | grep kube-proxy && fail "kube-proxy's tables stay on node-$i"
        nothing_was_lost "node-$i moved"
    done

    say "all nodes"
    kubectl -n kube-system delete daemonset kube-proxy
    kubectl apply -f "$rendered" >/dev/null
    kubectl -n kube-system rollout status daemonset/shunt --timeout=3m
    nothing_was_lost "kube-proxy removed"

    say "a second agent on node-1"
    # Without ports, or the scheduler would not let it in.
    spec=$(kubectl -n kube-system get daemonset shunt -o jsonpath='{.spec.template.spec}' | sed 's/"ports":\[[^]]*\],//')
    kubectl apply -f - >/dev/null \
        <<<'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "second", "namespace": "kube-system"},
             "spec": {"nodeName": "node-1", '"${spec#?}}"
    until_true 60 "a startup probe that fails for the second agent" second_waits
    [ "$(second '{.status.containerStatuses[0].started} {.status.containerStatuses[0].ready}')" = "false false" ] \
        || fail "an agent that waits for another one is started or ready"
    kubectl -n kube-system delete "$(shunt_pod node-1)"
    kubectl -n kube-system wait --for=condition=Ready pod/second --timeout=1m
    kubectl -n kube-system delete pod second
    kubectl -n kube-system rollout status daemonset/shunt --timeout=1m
    nothing_was_lost "another agent took over"

    say "an update"
    kubectl -n kube-system rollout restart daemonset/shunt
    kubectl -n kube-system rollout status daemonset/shunt --timeout=3m
    nothing_was_lost "shunt updated"

    say "an API server that restarts"
    restart_api_server
    kubectl -n kube-system rollout restart daemonset/shunt
    kubectl -n kube-system rollout status daemonset/shunt --timeout=3m
    kubectl scale deployment/web --replicas=4
    kubectl rollout status deployment/web --timeout=2m
    nothing_was_lost "API server restarted"

    say "a node that is drained and boots again"
    kubectl drain node-2 --ignore-daemonsets --delete-emptydir-data --force --timeout=2m
    nothing_was_lost "node-2 drained"
    containers=$(containers_on_node_2)
    reboot_node 2
    until_true 120 "new containers on node-2" node_2_is_booted
    kubectl uncordon node-2
    kubectl -n kube-system wait --for=condition=Ready "$(shunt_pod node-2)" --timeout=3m
    kubectl wait --for=condition=Ready pod -l app=client --timeout=3m
    sleep 2
    since=$(date --utc +%FT%TZ)
    sleep 5
    nothing_was_lost "node-2 booted"

    say "a token that expires"
    kubectl -n kube-system patch daemonset shunt --patch '
      {"spec": {"template": {"spec": {
        "containers": [{"name": "shunt", "volumeMounts":
          [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "volumes": [{"name": "token", "projected": {"sources": [
          {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
          {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}]}}}}'
    kubectl -n kube-system rollout status daemonset/shunt --timeout=3m
    # Younger than those of the agents, so theirs are over with it.
    token=$(kubectl -n kube-system create token shunt --duration=10m)
    until_true 700 "the end of a token" token_has_expired
    kubectl scale deployment/web --replicas=3
    kubectl rollout status deployment/web --timeout=2m
    for i in $(seq "$nodes"); do kubectl -n kube-system exec "$(shunt_pod "node-$i")" -- shunt status; done
    nothing_was_lost "first tokens expired"

    say "back to kube-proxy"
    kubectl -n kube-system delete daemonset shunt
    kubectl -n kube-system wait --for=delete pod -l app.kubernetes.io/name=shunt --timeout=2m
    kubectl apply -f "$state/kube-proxy.yaml" >/dev/null
    kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=3m
    for i in $(seq "$nodes"); do
        kubectl label node "node-$i" shunt-
        # Its pod is ready before it has written a rule.
        until_true 60 "kube-proxy's rules on node-$i" inside "$control-node-$i" nft list chain ip kube-proxy services
        kubectl -n kube-system run "on-node-$i" --quiet --rm --attach --restart=Never --image="localhost/shunt:$version" \
            --pod-running-timeout=2m --overrides="$(printf '{"spec": {"nodeName": "node-%s",
              "hostNetwork": true, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "it",
              "image": "localhost/shunt:%s", "args": ["cleanup"], "securityContext": {"runAsUser": 0, "privileged": true}}]}}' \
              "$i" "$version")"
        inside "$control-node-$i" nft list tables | grep shunt && fail "shunt's tables stay on node-$i"
    done
    nothing_was_lost "back on kube-proxy"
}
