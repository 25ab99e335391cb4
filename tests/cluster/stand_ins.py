"""Stands in for CoreDNS and for a cloud's load balancers, in the namespace of the control plane.

usage: stand_ins.py KUBECONFIG NODES

DNS: names of Services and of their endpoints, from the API. Pods ask the Service kube-dns, whose endpoint
this is. Load balancers: an address for each Service, routed to the nodes by ECMP as a router with BGP does,
and only to nodes whose health check answers if the policy is Local.
"""

import http.client
import ipaddress
import json
import re
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time

KUBECONFIG, NODES = open(sys.argv[1]).read(), int(sys.argv[2])
TOKEN = re.search(r'token: "([^"]+)"', KUBECONFIG)[1]
TLS = ssl.create_default_context(cafile=re.search(r"certificate-authority: ([^}\s]+)", KUBECONFIG)[1])
HOST = re.search(r"https://\[?([^]]+?)\]?:6443", KUBECONFIG)[1]
SERVICES, SLICES = "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
A, CNAME, PTR, AAAA, SRV = 1, 5, 12, 28, 33
NXDOMAIN, SERVFAIL = 3, 2


def api(method, path, body=None):
    connection = http.client.HTTPSConnection(HOST, 6443, context=TLS, timeout=10)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/merge-patch+json"}
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise OSError(f"{method} {path}: {answer.status} {text[:200]}")
    return json.loads(text)


# DNS


class Names:
    """The records of the cluster, from lists that are half a second old at most."""

    def __init__(self):
        self.lock, self.made, self.records = threading.Lock(), 0, {}

    def current(self):
        with self.lock:
            if time.monotonic() - self.made > 0.5:
                self.records = self.read()
                self.made = time.monotonic()
            return self.records

    def read(self):
        records = {}

        def put(name, kind, value):
            records.setdefault(name.lower(), []).append((kind, value))

        def address(name, text, reverse):
            it = ipaddress.ip_address(text)
            put(name, A if it.version == 4 else AAAA, it.packed)
            if reverse:
                put(it.reverse_pointer, PTR, name)

        slices = {}
        for it in api("GET", SLICES)["items"]:
            service = it["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            slices.setdefault((it["metadata"]["namespace"], service), []).append(it)
        for service in api("GET", SERVICES)["items"]:
            meta, spec = service["metadata"], service["spec"]
            name = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
            records.setdefault(name, [])
            if spec["type"] == "ExternalName":
                put(name, CNAME, spec["externalName"])
            elif spec["clusterIP"] != "None":
                for text in spec["clusterIPs"]:
                    address(name, text, True)
                for port in spec["ports"]:
                    put(f"_{port.get('name')}._{port['protocol']}.{name}", SRV, (port["port"], name))
            else:
                for it in slices.get((meta["namespace"], meta["name"]), []):
                    for endpoint in it["endpoints"] or []:
                        if endpoint["conditions"].get("ready") is False and not spec.get("publishNotReadyAddresses"):
                            continue
                        for text in endpoint["addresses"]:
                            address(name, text, False)
                            own = endpoint.get("hostname") or re.sub("[.:]", "-", text)
                            address(f"{own}.{name}", text, "hostname" in endpoint)
                            for port in it["ports"] or []:
                                target = (port["port"], f"{own}.{name}")
                                put(f"_{port.get('name')}._{port['protocol']}.{name}", SRV, target)
        return records


NAMES = Names()


def encode(name):
    labels = [label.encode() for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def answer(query):
    """The answer to a query with one question."""
    end, labels = 12, []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].decode())
        end += 1 + query[end]
    kind, _ = struct.unpack("!HH", query[end + 1 : end + 5])
    name, question = ".".join(labels).lower(), query[12 : end + 5]
    code, found = 0, []
    try:
        records = NAMES.current()
        for _ in range(4):
            here = records.get(name)
            if here is None:
                # Of foreign names, that an alias leads to, nothing is known.
                code = 0 if found else NXDOMAIN
                # "web.ns.svc.cluster.local" exists, and with it each name above.
                if any(it.endswith("." + name) for it in records):
                    code = 0
                break
            alias = [value for type_, value in here if type_ == CNAME]
            if not alias or kind == CNAME:
                found += [(name, kind, value) for type_, value in here if type_ == kind]
                break
            found.append((name, CNAME, alias[0]))
            name = alias[0].rstrip(".").lower()
    except OSError as error:
        print(error, flush=True)
        code = SERVFAIL
    body = b""
    for owner, type_, value in found:
        if type_ in (CNAME, PTR):
            value = encode(value)
        elif type_ == SRV:
            value = struct.pack("!HHH", 0, 100, value[0]) + encode(value[1])
        body += encode(owner) + struct.pack("!HHIH", type_, 1, 1, len(value)) + value
    return query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(found), 0, 0) + question + body


class Listener:
    address_family = socket.AF_INET6 if ":" in HOST else socket.AF_INET


class UdpServer(Listener, socketserver.ThreadingUDPServer):
    pass


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        query, server = self.request
        server.sendto(answer(query), self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        while length := self.rfile.read(2):
            text = answer(self.rfile.read(struct.unpack("!H", length)[0]))
            self.wfile.write(struct.pack("!H", len(text)) + text)


class TcpServer(Listener, socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True


# Load balancers


def is_healthy(node, port):
    try:
        connection = http.client.HTTPConnection(f"{HOST}{node}", port, timeout=1)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def route(address, nodes):
    """Routes an address to nodes. Without a node, its packets vanish, as behind a cloud's load balancer."""
    family = ipaddress.ip_address(address).version
    gateway, source = ("172.30.0.1", "192.0.2.1") if family == 4 else ("fd30::1", "2001:db8:2::1")
    hops = [word for node in nodes for word in ("nexthop", "via", f"{gateway}{node}")]
    target = [address, "src", source, *(hops if nodes else ("dev", "void"))]
    subprocess.run(["ip", f"-{family}", "route", "replace", *target], check=True)


def balance(routes, numbers):
    """Gives each Service of the type an address, and brings the routes up to date."""
    wanted = {}
    for service in api("GET", SERVICES)["items"]:
        meta, spec = service["metadata"], service["spec"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
        balanced = service["status"].get("loadBalancer", {}).get("ingress", [])
        finalizers = meta.get("finalizers", [])
        others = [it for it in finalizers if it != FINALIZER]
        if spec["type"] != "LoadBalancer" or "deletionTimestamp" in meta or spec.get("loadBalancerClass"):
            if FINALIZER in finalizers:
                api("PATCH", f"{path}/status", {"status": {"loadBalancer": None}})
                api("PATCH", path, {"metadata": {"finalizers": others}})
            continue
        if not balanced:
            numbers.append(number := len(numbers) + 1)
            prefix = {"IPv4": f"203.0.{113 + number // 250}.{number % 250 + 1}", "IPv6": f"2001:db8:203::{number:x}"}
            balanced = [{"ip": prefix[family], "ipMode": "VIP"} for family in spec["ipFamilies"]]
            api("PATCH", path, {"metadata": {"finalizers": [*others, FINALIZER]}})
            api("PATCH", f"{path}/status", {"status": {"loadBalancer": {"ingress": balanced}}})
        nodes, check = range(1, NODES + 1), spec.get("healthCheckNodePort")
        nodes = tuple(node for node in nodes if not check or is_healthy(node, check))
        # Nodes do not share affinities, so a load balancer keeps a client at one of them.
        nodes = nodes[:1] if spec["sessionAffinity"] == "ClientIP" else nodes
        wanted.update((it["ip"], nodes) for it in balanced)
    for address in routes.keys() - wanted.keys():
        route(address, ())
    for address, nodes in wanted.items():
        if routes.get(address) != nodes:
            route(address, nodes)
    routes.clear()
    routes.update(wanted)


def main():
    servers = [UdpServer((HOST, 53), Udp), TcpServer((HOST, 53), Tcp)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    routes, numbers = {}, []
    while True:
        try:
            balance(routes, numbers)
        except (OSError, subprocess.CalledProcessError) as error:
            print(error, flush=True)
        time.sleep(0.3)


main()
