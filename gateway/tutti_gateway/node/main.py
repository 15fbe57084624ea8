"""Entry point of a gateway process: checks the ports, starts the reads process, runs the gateway, and returns the exit code.

Importing the libraries takes long in the gateway and in the reads process. The reads process starts first, so that both processes
import at the same time. This module imports little at the top, so that the reads process starts early.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

from tutti.runtime.garbage_collector import relaxed_gc
from tutti.runtime.reserved_fds import raise_limit
from tutti_gateway.config import Address, Config
from tutti_gateway.core import limits
from tutti_gateway.node.common.port_check import wait_free
from tutti_gateway.node.status.reads_supervisor import Notifier, Supervisor
from tutti_gateway.node.status.status_socket import StatusSocketServer

US = 1_000_000
IDENTITY = "identity.json"
LOCK = "LOCK"


def run(config: Config, record: str = "") -> int:
    """Run a gateway until it is stopped. Print one line of JSON on stdout when the gateway is ready.

    Args:
        config: the gateway's configuration.
        record: directory in which to record all events of the protocol (`node.replay.recorder`); empty for none.

    Return the exit code: 0 after a stop, 1 if the gateway had halted or the stop took too long.

    Raises:
        TuttiError: the gateway cannot start, because of a port in use, a refused directory or corruption. `exit_code` gives the
            kind.
    """
    # Raise the limit of open files before the reads process starts, because that process inherits the limit.
    raise_limit()
    wait_free(
        {
            # A port in use ends the start with one clear error here; the reads process alone would only restart again and again.
            "clients": config.client_address,
            "the group": config.group_address,
            "reads": config.reads_address,
            "admin": config.admin_address,
        }
    )
    with contextlib.ExitStack() as opened:
        notifier = opened.enter_context(contextlib.closing(Notifier()))
        ports = [config.reads_address, config.admin_address]
        status_socket = opened.enter_context(contextlib.closing(StatusSocketServer()))
        fds = [notifier.read_fd, status_socket.child_fd]
        # The child inherits these two descriptors, so both ends exist before the child starts and outlive its restarts.
        reads = Supervisor(_reads_command(config, *fds), fds, ports, encrypted=config.security.has_tls)
        opened.callback(reads.stop)
        # A new directory has no records to read, and a refused directory must not be served.
        if _holds_our_log(config):
            reads.start()
        from tutti_gateway.node.process import Gateway  # noqa: PLC0415 - imported late, so that the reads process starts first

        gateway = Gateway(config, reads, notifier, status_socket, opened, record)
        # Python's default switch interval of 5 ms is longer than ten commits take, so waiting threads would delay each commit.
        sys.setswitchinterval(limits.SWITCH_INTERVAL_US / US)
        gateway.handle_signals()
        opened.enter_context(relaxed_gc())
        return gateway.run()


def _holds_our_log(config: Config) -> bool:
    """True if the directory holds the log of this gateway, so that the reads process may serve it before the gateway opens it.

    False if the directory is new, belongs to another gateway or group, is in use by another process, or belongs to a gateway that
    was removed from its group. The gateway reports the reason later, when it opens the directory.
    """
    try:
        identity = json.loads(Path(config.data, IDENTITY).read_bytes())
        with Path(config.data, LOCK).open("rb") as lock:
            # A shared lock fails only while another process holds the directory, and closing the file releases the lock at once.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(identity, dict) or identity.get("left"):
        return False
    return (identity.get("gateway"), identity.get("group")) == (config.name, config.group.name)


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
        # The child compares this number with its parent's, because the gateway may be killed before the child asks for SIGKILL.
        *("--parent", str(os.getpid())),
        *_security_options(config),
    ]


def _security_options(config: Config) -> list[str]:
    """Return the paths of the security files. Only paths are passed, so that the contents never appear on a command line."""
    security = config.security
    files = ("secret_key", "public_keys", "tokens", "tls_certificate", "tls_key")
    options = [word for name in files if (path := getattr(security, name)) for word in (f"--{name.replace('_', '-')}", path)]
    return [*options, "--open-metrics"] if security.open_metrics else options
