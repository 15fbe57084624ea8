#!/usr/bin/env bash
# Says in one sentence what the fault tests on real processes need and do not find: they make hosts and disks of their own.
set -euo pipefail
missing=()
for pair in ip:iproute2 tc:iproute2 iptables-restore:iptables nsenter:util-linux mount:mount cc:"gcc libc6-dev"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "lab: the fault tests need ${missing[*]} (Debian: apt-get install ${missing[*]})." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "lab: the fault tests make network namespaces and file systems, which takes root; without: make test ARGS='-m \"not soak and not lab\"'." >&2
    exit 1
fi
