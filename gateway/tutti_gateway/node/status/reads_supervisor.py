"""Supervisor of the reads process: starts the process, restarts it with backoff if it dies or hangs, and ends it with the gateway.

The child process inherits the read end of a pipe. A byte on the pipe means that the frontier moved; end of file means that the
gateway has ended. The child also asks the kernel for SIGKILL when the supervisor's thread ends (`PR_SET_PDEATHSIG`). Without this
signal, a stopped or stuck child, which does not read the pipe, would keep the ports that the gateway's next run needs.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tutti import limits as common_limits
from tutti_gateway.core import limits

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

US = 1_000_000
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # HTTP/2 preface and empty SETTINGS


class Notifier:
    """The pipe to the reads process: one byte means that new records can be read."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def notify(self) -> None:
        """Notify the reads process that the frontier moved. Never block."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the reads process anyway
            os.write(self._write_fd, b"!")

    def close(self) -> None:
        """Close both ends. The reads process then sees the end of the pipe."""
        os.close(self._write_fd)
        os.close(self.read_fd)


class Supervisor:
    """Keeps one child process running as long as the gateway runs, in a separate thread."""

    def __init__(
        self, command: Sequence[str], pass_fds: Sequence[int], ports: Sequence[tuple[str, int]], *, encrypted: bool = False
    ) -> None:
        """Prepare the supervisor; `start` starts it.

        Args:
            command: command line of the child.
            pass_fds: file descriptors that the child inherits.
            ports: (host, port) pairs on which the child listens when it is ready.
            encrypted: whether the child speaks TLS on these ports.
        """
        self._command = list(command)
        self._pass_fds = tuple(pass_fds)
        self._ports = list(ports)
        self._probe = _probe_tls if encrypted else _probe_http2
        self._log: FilteringBoundLogger | None = None
        self._on_ready: Callable[[], None] | None = None
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # PR_SET_PDEATHSIG fires at the end of the thread that starts the child, so this thread lives as long as the gateway.
        self._thread = threading.Thread(target=self._run, name="reads-supervisor", daemon=True)
        self._started = self._ending = False
        self.ready = False
        self.pid = 0
        self.starts = 0

    def attach(self, log: FilteringBoundLogger, ready: Callable[[], None]) -> None:
        """Set the log for the child's failures and the callback for its readiness.

        The supervisor's thread calls `ready` when all ports of the child accept connections for the first time. If the ports
        already accept connections, this method calls `ready` itself.
        """
        self._log = log
        self._on_ready = ready
        if self.ready:
            ready()

    def start(self) -> None:
        """Start the child. A second call has no effect."""
        if not self._started:
            self._started = True
            self._thread.start()

    def stop_restarting(self) -> None:
        """Stop restarting the child, because the gateway is stopping and a signal to the process group may end the child too."""
        self._ending = True

    def stop(self) -> None:
        """End the child with SIGTERM, or with SIGKILL after a time limit, and wait for it."""
        os.eventfd_write(self._stop_fd, 1)
        if self._started:
            self._thread.join()
        os.close(self._stop_fd)

    def _run(self) -> None:
        wait_s = grace_s = limits.READS_RESTART_US_MIN / US
        while True:
            began = time.monotonic()
            try:
                child = subprocess.Popen(self._command, pass_fds=self._pass_fds, stdin=subprocess.DEVNULL)
            except OSError as error:
                self._log_error("the reads process cannot be started", error=str(error))
            else:
                self.pid = child.pid
                self.starts += 1
                stopped = self._watched(child)
                self.pid = 0
                # A signal to the process group ends the child and stops the gateway, which soon calls `stop_restarting`.
                # Therefore `_is_over` waits a moment before a restart: `stop_restarting` may be about to be called.
                if stopped or self._is_over(grace_s):
                    return
                if child.returncode == 0:  # the process ends itself to load a new certificate
                    self._log_info("the reads process ended as planned and is restarted", after_s=wait_s)
                else:
                    self._log_error("the reads process ended and is restarted", code=child.returncode, after_s=wait_s)
            # If the child ran for a long time, it failed for a new reason, so the backoff starts over.
            if time.monotonic() - began > limits.READS_RESTART_US_MAX / US:
                wait_s = grace_s
            if self._is_over(wait_s):
                return
            wait_s = min(2 * wait_s, limits.READS_RESTART_US_MAX / US)

    def _log_error(self, what: str, **facts: object) -> None:
        if self._log is not None:
            self._log.error(what, **facts)

    def _log_info(self, what: str, **facts: object) -> None:
        if self._log is not None:
            self._log.info(what, **facts)

    def _is_over(self, wait_s: float) -> bool:
        """Wait for at most `wait_s` seconds. Return True if no further child must be started."""
        return self._stop_asked(wait_s) or self._ending

    def _stop_asked(self, wait_s: float) -> bool:
        poll = select.poll()
        poll.register(self._stop_fd, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def _watched(self, child: subprocess.Popen[bytes]) -> bool:
        """Call `_watch`. End a child that cannot be watched."""
        try:
            return self._watch(child)
        except OSError as error:  # the process has no file descriptor left
            self._log_error("the reads process cannot be watched", error=str(error))
            self._end(child)
            return self._stop_asked(0)

    def _watch(self, child: subprocess.Popen[bytes]) -> bool:
        """Wait until the child ends or hangs (return False), or the gateway stops (return True)."""
        # A pidfd is pollable, so one poll waits for the end of the child and for a stop request.
        pidfd = os.pidfd_open(child.pid)
        answered_at = probed_at = time.monotonic()
        try:
            poll = select.poll()
            poll.register(self._stop_fd, select.POLLIN)
            poll.register(pidfd, select.POLLIN)
            while True:
                happened = {
                    fd for fd, _ in poll.poll(common_limits.POLL_US_MAX / 1000 if self.ready else limits.READS_PROBE_US / 1000)
                }
                if pidfd in happened:
                    child.wait()
                    return self._stop_asked(0)
                if self._stop_fd in happened:
                    self._end(child)
                    return True
                # An accepted connection suffices at the start, because a child opens its ports only after its imports.
                if not self.ready and all(_accepts(host, port) for host, port in self._ports):
                    self.ready = True
                    if self._on_ready is not None:
                        self._on_ready()
                now = time.monotonic()
                if now - probed_at >= limits.READS_CHECK_US / US:
                    probed_at = now
                    if all(_responds(host, port, self._probe) for host, port in self._ports):
                        answered_at = time.monotonic()
                    elif now - answered_at >= limits.READS_SILENT_US_MAX / US:
                        self._log_error("the reads process does not answer and is ended", silent_s=round(now - answered_at))
                        self._end(child)
                        return self._stop_asked(0)
        finally:
            os.close(pidfd)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        child.terminate()
        try:
            child.wait(timeout=limits.READS_END_US_MAX / US)
        except subprocess.TimeoutExpired:
            # A stopped or stuck child does not handle SIGTERM.
            child.kill()
            child.wait()


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=limits.READS_PROBE_US / US):
            return True
    except OSError:
        return False


def _responds(host: str, port: int, greet: Callable[[socket.socket], None]) -> bool:
    """True if the process answers on the port.

    A connection is no proof, because the kernel accepts connections even for a process that hangs.
    """
    try:
        with socket.create_connection((host, port), timeout=limits.READS_ANSWER_US_MAX / US) as connection:
            greet(connection)
    # A reset comes from a process that runs; for a process that hangs, the kernel keeps the accepted connection open.
    except (ConnectionResetError, BrokenPipeError):
        return True
    except OSError:
        return False
    return True


def _probe_http2(connection: socket.socket) -> None:
    """Send the HTTP/2 preface of gRPC, which both ports answer at once; the admin port answers with an error."""
    connection.sendall(_GREETING)
    connection.recv(1)


def _probe_tls(connection: socket.socket) -> None:
    """Begin a TLS handshake without checking the certificate; a refused handshake counts as an answer."""
    import ssl  # noqa: PLC0415 - only a gateway with a certificate needs TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLError):
        context.wrap_socket(connection).close()
