"""One gateway process, from its configuration to its exit code.

The reads process needs as long to load its libraries as this one does, so it is started first and both load at the same time; what
this file imports at its top is therefore little.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

from tutti.runtime.reserved_fds import raise_limit
from tutti_gateway.config import Address, Config
from tutti_gateway.core import limits
from tutti_gateway.node.common.ports import wait_free
from tutti_gateway.node.status.reads_supervisor import Notifier, Supervisor
from tutti_gateway.node.status.status_socket import Desk

US = 1_000_000
IDENTITY = "identity.json"
LOCK = "LOCK"


def run(config: Config, record: str = "") -> int:
    """Run a gateway until it is told to stop. One line of JSON on stdout says that it is ready.

    With `record` everything that happens to the protocol is recorded in a file of that directory (`node.replay.recorder`).

    Returns the exit code: 0 after an orderly stop, 1 when it had halted or the stop took too long.

    Raises:
        TuttiError: it cannot start (a port in use, a directory refused, damage found);
            `exit_code` says of which kind.
    """
    raise_limit()
    wait_free(
        {
            "clients": config.client_address,
            "the group": config.group_address,
            "reads": config.reads_address,
            "admin": config.admin_address,
        }
    )
    with contextlib.ExitStack() as opened:
        notifier = opened.enter_context(contextlib.closing(Notifier()))
        ports = [config.reads_address, config.admin_address]
        desk = opened.enter_context(contextlib.closing(Desk()))
        fds = [notifier.read_fd, desk.their_fd]
        reads = Supervisor(_reads_command(config, *fds), fds, ports, encrypted=config.security.has_tls)
        opened.callback(reads.stop)
        if _holds_our_log(config):
            reads.start()
        from tutti_gateway.node.process import Gateway  # noqa: PLC0415 - see above

        gateway = Gateway(config, reads, notifier, desk, opened, record)
        sys.setswitchinterval(limits.SWITCH_INTERVAL_US / US)
        gateway.heed_signals()
        return gateway.work()


def _holds_our_log(config: Config) -> bool:
    """Whether reads may be served before the directory is opened, which is what finds and says why it is refused.

    A new directory holds nothing to read yet; another gateway's or group's is not to be shown, nor one that a process is writing,
    nor one that its group went on without.
    """
    try:
        told = json.loads(Path(config.data, IDENTITY).read_bytes())
        with Path(config.data, LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(told, dict) or told.get("left"):
        return False
    return (told.get("gateway"), told.get("group")) == (config.name, config.group.name)


def _reads_command(config: Config, notify_fd: int, status_fd: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tutti_gateway.reads",
        *("--data", str(Path(config.data).absolute())),
        *("--reads", str(config.reads_address)),
        *("--admin", str(config.admin_address)),
        *("--client", f"tutti://{config.client_address}"),
        *("--advertise", str(Address(config.advertised_address.host, config.reads_address.port))),
        *("--notify-fd", str(notify_fd)),
        *("--status-fd", str(status_fd)),
        *("--parent", str(os.getpid())),
        *_security_options(config),
    ]


def _security_options(config: Config) -> list[str]:
    """Where the files are; nothing of what they hold stands in a command line."""
    security = config.security
    files = ("secret_key", "public_keys", "tokens", "tls_certificate", "tls_key")
    told = [word for name in files if (path := getattr(security, name)) for word in (f"--{name.replace('_', '-')}", path)]
    return [*told, "--open-metrics"] if security.open_metrics else told
