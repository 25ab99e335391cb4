#!/usr/bin/env bash
# Makes the images of the cluster, as one archive of `docker save`, from programs of this machine. No registry is
# needed. The images have the names that upstream's tests ask for, and programs that do the same.
#
# usage: images.sh ASSETS SHUNT VERSION ARCHIVE
set -euo pipefail

assets=$1 shunt=$2 version=$3 archive=$4 manifest=""
tests=registry.k8s.io/e2e-test-images
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work"/{images,shunt,all}

# Copies a program, and the libraries that it needs to where Debian has them.
put() { # FOLDER NAME PROGRAM
    local library
    for library in $(ldd "$3" 2>/dev/null | grep --only-matching '/[^ ]*'); do
        install -D "$library" "$1/usr${library#/usr}"
    done
    install -D "$3" "$1/$2"
}

layer() { # FOLDER
    local folder digest
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$1/$folder"; done
    tar --create --file "$work/layer" --owner 0 --group 0 --directory "$1" .
    digest=$(sha256sum <"$work/layer" | cut -d' ' -f1)
    mv "$work/layer" "$work/images/$digest.tar"
    echo "$digest"
}

image() { # LAYER COMMAND ARGUMENTS NAMES, all but the first in JSON
    local config="${#manifest}.json"
    cat >"$work/images/$config" <<END
{"architecture": "$(dpkg --print-architecture)", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$1"]},
 "config": {"Entrypoint": $2, "Cmd": $3, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}}
END
    manifest+="${manifest:+, }{\"RepoTags\": $4, \"Config\": \"$config\", \"Layers\": [\"$1.tar\"]}"
}

put "$work/shunt" usr/bin/shunt "$shunt"
image "$(layer "$work/shunt")" '["/usr/bin/shunt"]' '["run"]' "[\"localhost/shunt:$version\"]"

# One layer has everything else.
all=$work/all
mkdir -p "$all"/{etc,tmp,uploads,usr/bin,usr/sbin,usr/lib64}
chmod 1777 "$all"/{tmp,uploads}
put "$all" agnhost "$assets/agnhost"
put "$all" usr/local/bin/kube-proxy "$assets/kube-proxy"
if [ -e "$assets/regression-issue-74839" ]; then
    put "$all" regression-issue-74839 "$assets/regression-issue-74839"
else
    echo "images: no $assets/regression-issue-74839; the spec that runs it will fail" >&2
fi
for applet in $(busybox --list); do ln -s busybox "$all/usr/bin/$applet"; done
# Debian's busybox has more faults in these than upstream's image.
for tool in busybox bash dash curl wget nc.openbsd ip ss iperf conntrack nft dig nslookup getent; do
    rm -f "$all/usr/bin/$tool"
    put "$all" "usr/bin/$tool" "$(command -v $tool)"
done
ln -sf dash "$all/usr/bin/sh"
ln -sf nc.openbsd "$all/usr/bin/nc"
ln -s /usr/bin/iperf "$all/usr/local/bin/iperf"
# By it agnhost's servers answer with TLS.
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost \
    -keyout "$all/localhost.key" -out "$all/localhost.crt" 2>/dev/null
chmod 644 "$all/localhost.key"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$all/etc/passwd"
printf 'root:x:0:\nnobody:x:65534:\n' >"$all/etc/group"
# kube-proxy compares names of protocols in what nft lists. With numbers it removes its own elements at a restart.
printf 'tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n' >"$all/etc/protocols"
echo 'hosts: files dns' >"$all/etc/nsswitch.conf"
echo 'tries = 1' >"$all/etc/wgetrc"
all=$(layer "$all")
image "$all" '["/agnhost", "pause"]' '[]' '["registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"]'
image "$all" '["/agnhost"]' '["pause"]' "[\"$tests/agnhost:2.63.0\"]"
image "$all" '[]' '["sh"]' "[\"$tests/busybox:1.37.0-1\", \"$tests/glibc-dns-testing:2.0.0\",
    \"registry.k8s.io/build-image/distroless-iptables:v0.9.3\"]"
image "$all" '["/usr/local/bin/kube-proxy"]' '[]' '["registry.k8s.io/kube-proxy:v1.36.2"]'
image "$all" '["/regression-issue-74839"]' '[]' "[\"$tests/regression-issue-74839:1.5\"]"

echo "[$manifest]" >"$work/images/manifest.json"
tar --create --file "$archive" --directory "$work/images" .
