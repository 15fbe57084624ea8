#!/usr/bin/env bash
# Says in one sentence what the fault tests on real processes need and do not find: they make hosts and disks of their own, and what is
# optional elsewhere is tested, so that it has to be there. tools/lab.sh [PYTHON]: the interpreter of the tests.
set -euo pipefail
missing=()
for pair in ip:iproute2 tc:iproute2 iptables-restore:iptables nsenter:util-linux mount:mount cc:"gcc libc6-dev"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
headers=$("${1:-${PYTHON:-python3}}" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null || true)
[ -e "$headers/Python.h" ] || missing+=("${headers##*/}-dev")
if [ ${#missing[@]} -gt 0 ]; then
    echo "lab: the fault tests need ${missing[*]} (Debian: apt-get install ${missing[*]})." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "lab: the fault tests make network namespaces and file systems, which takes root; without: make test ARGS='-m \"not soak and not lab\"'." >&2
    exit 1
fi
