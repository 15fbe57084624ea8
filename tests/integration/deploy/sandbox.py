"""Sandboxes show what a container or a unit sees, without an engine: a read-only root, volumes, a network of its own, no
capabilities. A sandbox is a mount namespace on one host of a lab network. Its root consists of the machine's own directories,
read-only. `/opt/tutti` is this checkout, under the paths that image and units name, `/etc/hosts` names the other hosts, and mounts
are given by path. A sandbox does not show the image's user (the root of a sandbox has no capabilities, but owns the machine's
files), tini, and cgroups.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.faults.lab.network import Network
from tutti.runtime.child_processes import end_with_this_process

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 120.0
OWN = "/opt/tutti/bin"
_HIDDEN = {"etc", "keys", "public", "secret", "var", "tmp"}  # of the machine's; a checkout may lie there
#: $1 the new root, $2 what is mounted there ("source target ro|rw" a line, no source for an empty file system), then the command.
_MAKE = r"""
set -euo pipefail
root=$1 mounts=$2; shift 2
mount -t tmpfs -o mode=755 tmpfs "$root"
for entry in /*; do
    name=${entry#/}
    if [ -L "$entry" ]; then cp -a "$entry" "$root/$name"
    elif [ -d "$entry" ]; then
        mkdir "$root/$name"
        case $name in opt|etc|keys|public|secret|var|tmp) ;; *) mount --rbind "$entry" "$root/$name" ;; esac
    fi
done
cp -a /etc/. "$root/etc"
for entry in /opt/*; do  # a Python may be there
    [ -d "$entry" ] && [ "$entry" != /opt/tutti ] || continue
    mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"
done
mkdir -p "$root/var/lib" "$root/var/tmp"
while read -r source target mode; do
    [ -n "$target" ] || continue
    if [ "$source" = - ]; then mkdir -p "$root$target"; mount -t tmpfs tmpfs "$root$target"
    else
        if [ -d "$source" ]; then mkdir -p "$root$target"; else mkdir -p "$(dirname "$root$target")"; : > "$root$target"; fi
        mount --bind "$source" "$root$target"
        [ "$mode" = rw ] || mount -o remount,bind,ro "$root$target"
    fi
done <<<"$mounts"
for name in usr bin sbin lib lib64 root home srv work; do
    if mountpoint -q "$root/$name"; then mount -o remount,bind,ro "$root/$name"; fi
done
mount -o remount,ro "$root"
exec unshare --root="$root" --wd="$BOX_DIRECTORY" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


class Mount(NamedTuple):
    """Something at a path of the box; no source is an empty file system in memory."""

    source: Path | None
    target: str
    writable: bool = False


class Box:
    """One box; `run` runs in it to the end, `start` goes on. Its processes end with the block, and with this process."""

    def __init__(
        self,
        network: Network,
        host: str,
        scratch: Path,
        mounts: Sequence[Mount],
        *,
        names: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str = "/",
    ) -> None:
        """Nothing runs yet. `names` are hosts of `/etc/hosts` by name."""
        self._network, self._host = network, host
        own = scratch / "own"
        own.mkdir(parents=True, exist_ok=True)
        for name, run in {"tutti": f"{sys.executable} -m tutti_gateway", "python": sys.executable}.items():
            (own / name).write_text(f'#!/bin/sh\nexec {run} "$@"\n')
            (own / name).chmod(0o755)
        hosts = scratch / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in (names or {}).items())]
        hosts.write_text("\n".join(lines) + "\n")
        hidden = [Mount(place, str(place)) for place in (ROOT, Path(sys.prefix)) if place.parts[1] in _HIDDEN]
        self._mounts = [Mount(own, OWN), Mount(hosts, "/etc/hosts"), *mounts, *hidden]
        self._root = scratch / "root"
        self._root.mkdir()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(environment or {}),
            "PATH": f"{OWN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "BOX_DIRECTORY": directory,
        }
        self.processes: list[subprocess.Popen[str]] = []

    def command(self, *command: str) -> list[str]:
        """What runs a command in the box."""
        mounts = "\n".join(f"{mount.source or '-'} {mount.target} {'rw' if mount.writable else 'ro'}" for mount in self._mounts)
        inside = ["unshare", "--mount", "--propagation=private", "--", "bash", "-c", _MAKE, "box", str(self._root), mounts]
        return [*self._network.inside(self._host), *inside, *command]

    def run(self, *command: str, text: str = "") -> str:
        """Run a command to its end, and return its output. Raises AssertionError with that output if the exit code is not 0."""
        done = subprocess.run(
            self.command(*command), input=text, env=self._environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[-2000:]}"
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command that keeps running."""
        with (self._root.parent / "log").open("w") as log:
            process = subprocess.Popen(
                self.command(*command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        """What its last process said on standard error, the end of it."""
        return (self._root.parent / "log").read_text("utf-8", "replace")[-3000:]

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def ready(process: subprocess.Popen[str], box: Box) -> dict[str, Any]:
    """The line with which a gateway or a connector says that it is ready."""
    assert process.stdout is not None
    deadline = time.monotonic() + WAIT_S
    while not select.select([process.stdout], [], [], 1.0)[0]:
        assert process.poll() is None, box.log()
        assert time.monotonic() < deadline, box.log()
    line = process.stdout.readline()
    assert line, box.log()
    told: dict[str, Any] = json.loads(line)
    return told


@contextlib.contextmanager
def stopping(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """At the end of the block each gets SIGTERM, one after another as in a rolling stop, and must end with 0."""
    yield
    for process in processes:
        process.terminate()
        assert process.wait(WAIT_S) == 0
