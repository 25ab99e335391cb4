"""Makes the images of the cluster, as one archive of `docker save`, from programs of this machine.

usage: images.py ASSETS SHUNT VERSION ARCHIVE

No registry is needed. The images have the names that upstream's tests ask for, and programs that do the same.
"""

import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

assets, shunt, version, archive = sys.argv[1:]
TESTS = "registry.k8s.io/e2e-test-images"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PAUSE = """
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap); for (;;) pause(); }
"""
# Debian's busybox has more faults in these than upstream's image.
TOOLS = ["bash", "dash", "curl", "wget", "nc.openbsd", "ip", "ss", "iperf", "conntrack", "nft", "dig", "nslookup", "getent"]


class Layer:
    def __init__(self):
        self.files, self.buffer = set(), io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w")
        for folder in ["bin", "sbin", "lib", "lib64"]:
            self.link(folder, f"usr/{folder}")

    def link(self, name, target):
        self.add(tarfile.TarInfo(name), target=target)

    def text(self, name, text):
        self.add(tarfile.TarInfo(name), data=text.encode())

    def program(self, path, name=None):
        """Adds a program with its libraries."""
        libraries = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for line in libraries.splitlines():
            words = [word for word in line.split() if word.startswith("/")]
            if words:
                self.file(words[0], usr(words[0]))
        self.file(path, name or usr(path))

    def file(self, path, name):
        self.add(tarfile.TarInfo(name), data=pathlib.Path(path).read_bytes(), mode=0o755)

    def add(self, info, data=None, target=None, mode=0o644):
        if info.name in self.files:
            return
        self.files.add(info.name)
        info.mode = mode
        if target:
            info.type, info.linkname = tarfile.SYMTYPE, target
            return self.tar.addfile(info)
        info.size = len(data)
        self.tar.addfile(info, io.BytesIO(data))

    def folder(self, name, mode=0o755):
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self.tar.addfile(info)

    def bytes(self):
        self.tar.close()
        return self.buffer.getvalue()


def usr(path):
    """The same path below /usr, where all programs and libraries are."""
    path = path.lstrip("/")
    return path if path.startswith("usr/") else f"usr/{path}"


def find(program):
    path = shutil.which(program, path=PATH)
    return path or sys.exit(f"there is no {program} on this machine")


def tools():
    layer = Layer()
    for name in TOOLS:
        layer.program(find(name))
    layer.link("usr/bin/sh", "dash")
    layer.link("usr/bin/nc", "nc.openbsd")
    layer.link("usr/local/bin/iperf", "/usr/bin/iperf")
    busybox = find("busybox")
    layer.program(busybox, "usr/bin/busybox")
    for applet in subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split():
        if f"usr/sbin/{applet}" not in layer.files:
            layer.link(f"usr/bin/{applet}", "busybox")
    layer.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    layer.text("etc/group", "root:x:0:\nnobody:x:65534:\n")
    # kube-proxy compares names of protocols in what nft lists. With numbers it removes its own elements at a restart.
    layer.text("etc/protocols", "tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n")
    layer.text("etc/nsswitch.conf", "hosts: files dns\n")
    layer.text("etc/wgetrc", "tries = 1\n")
    layer.folder("tmp", 0o1777)
    layer.folder("uploads", 0o777)
    return layer.bytes()


def single(path, name):
    layer = Layer()
    layer.program(path, name)
    return layer.bytes()


def agnhost():
    """With the certificate by which its servers answer with TLS."""
    layer = Layer()
    layer.program(f"{assets}/agnhost", "agnhost")
    with tempfile.TemporaryDirectory() as folder:
        files = {option: f"{folder}/localhost.{option}" for option in ["crt", "key"]}
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=localhost",
                        "-keyout", files["key"], "-out", files["crt"]], check=True, capture_output=True)
        for option, path in files.items():
            layer.text(f"localhost.{option}", pathlib.Path(path).read_text())
    return layer.bytes()


def pause():
    with tempfile.TemporaryDirectory() as folder:
        source, program = f"{folder}/pause.c", f"{folder}/pause"
        pathlib.Path(source).write_text(PAUSE)
        subprocess.run(["cc", "-static", "-o", program, source], check=True)
        return single(program, "pause")


def main():
    base = tools()
    regression = f"{assets}/regression-issue-74839"
    images = [
        (["registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"], [pause()], ["/pause"], []),
        ([f"{TESTS}/agnhost:2.63.0"], [base, agnhost()], ["/agnhost"], ["pause"]),
        ([f"{TESTS}/busybox:1.37.0-1", f"{TESTS}/glibc-dns-testing:2.0.0",
          "registry.k8s.io/build-image/distroless-iptables:v0.9.3"], [base], [], ["sh"]),
        (["registry.k8s.io/kube-proxy:v1.36.2"], [base, single(f"{assets}/kube-proxy", "usr/local/bin/kube-proxy")],
         ["/usr/local/bin/kube-proxy"], []),
        ([f"localhost/shunt:{version}"], [single(shunt, "usr/bin/shunt")], ["/usr/bin/shunt"], ["run"]),
    ]
    if os.path.exists(regression):
        images.append(([f"{TESTS}/regression-issue-74839:1.5"], [base, single(regression, "regression-issue-74839")],
                       ["/regression-issue-74839"], []))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    out, written, manifest = tarfile.open(archive, "w"), set(), []

    def write(name, data):
        if name not in written:
            written.add(name)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
        return name

    for names, layers, entry, words in images:
        digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
        config = json.dumps({
            "architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{it}" for it in digests]},
            "config": {"Entrypoint": entry, "Cmd": words, "Env": [f"PATH={PATH}"]},
        }).encode()
        manifest.append({
            "RepoTags": names, "Config": write(hashlib.sha256(config).hexdigest() + ".json", config),
            "Layers": [write(f"{digest}/layer.tar", layer) for digest, layer in zip(digests, layers)],
        })
    write("manifest.json", json.dumps(manifest).encode())
    out.close()


main()
