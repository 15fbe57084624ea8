"""The reads process: opens the log and serves it until SIGTERM, or until the gateway ends."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from tutti.common.credentials import FILE_VARIABLE, TOKEN_VARIABLE
from tutti.data.member_address import Address, parse_host_port
from tutti.errors import ConfigError, TuttiError, Unavailable
from tutti.log.read.reader import LogReader
from tutti.runtime import reserved_fds
from tutti.runtime.block_pandas import block_pandas
from tutti.runtime.child_processes import end_with_parent
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.history import History
from tutti_gateway.reads.admin.http import AdminServer
from tutti_gateway.reads.admin.pages import Pages
from tutti_gateway.reads.admin.record_pages import RecordBrowser
from tutti_gateway.reads.common import logging_setup, process_memory
from tutti_gateway.reads.common.authorization import ReadsAuthorizer, SecurityFiles
from tutti_gateway.reads.common.gateway_link import GatewayLink
from tutti_gateway.reads.common.gateway_liveness import Liveness
from tutti_gateway.reads.common.idle_connections import Connections, DescriptorGuard
from tutti_gateway.reads.flight.actions import Actions
from tutti_gateway.reads.flight.plans import RangeSplitter
from tutti_gateway.reads.flight.server import ReadsServer
from tutti_gateway.reads.flight.streams import Streams
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch
from tutti_gateway.reads.logs.peer_endpoints import PeerCache
from tutti_gateway.reads.logs.query_reports import QueryReports
from tutti_gateway.reads.logs.served_logs import ServedLogs

US = 1_000_000
LOG = logging.getLogger("tutti.reads")
HOUSEKEEPING_S = 1.0
NICENESS = 5  # gives the gateway's votes priority over scans on a machine with few cores


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line that the gateway passes."""
    parser = argparse.ArgumentParser(prog="python -m tutti_gateway.reads", description=__doc__)
    parser.add_argument("--data", required=True, help="the gateway's data directory")
    parser.add_argument("--reads", required=True, help="HOST:PORT of Arrow Flight")
    parser.add_argument("--admin", required=True, help="HOST:PORT of the admin pages")
    parser.add_argument("--client", required=True, help="tutti://HOST:PORT of the gateway")
    parser.add_argument("--advertise", help="HOST:PORT at which readers reach the reads port, if it differs from --reads")
    for name in SecurityFiles._fields:
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help=f"path of the gateway's file `security.{name}`")
    parser.add_argument("--open-metrics", action="store_true", help="serve /metrics without a token")
    parser.add_argument("--parent", type=int, help="process id of the gateway; this process ends when the gateway ends")
    parser.add_argument("--notify-fd", type=int, help="read end of the pipe that signals a moved frontier")
    parser.add_argument("--status-fd", type=int, help="socket at which the gateway answers requests for its status")
    return parser.parse_args(arguments)


def listen(address: str, what: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT.

    Raises:
        UsageError: the address is not of the form HOST:PORT.
        Unavailable: the port is in use, or the host does not belong to this machine.
    """
    host, port = parse_host_port(address, port_min=0)
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)  # without an explicit protocol, asyncio does not set TCP_NODELAY
        # Without SO_REUSEADDR, a restarted reads process could not bind its port while old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(socket_address)
        listener.listen(limits.HTTP_CONNECTIONS_MAX)  # the backlog holds connections until the server starts
    except OSError as error:
        raise Unavailable(
            f"the {what} port {address} cannot be opened: {error.strerror or error}; "
            "end the process that uses it, or give the gateway another port"
        ) from error
    return listener


class Process:
    """The parts of the reads process, created in the order in which they start."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Open the log and listen.

        Raises:
            TuttiError: a port is in use, or the directory holds no readable log.
        """
        listener = listen(options.admin, "admin")
        host, port = parse_host_port(options.reads, port_min=0)
        self.reader = LogReader(options.data)
        self.watch = FrontierWatch(self.reader.frontier, options.notify_fd, _terminate)
        self._liveness = Liveness(self.reader.heartbeat_us)
        self._guard = guard = ReadsAuthorizer(SecurityFiles(**{name: getattr(options, name) for name in SecurityFiles._fields}))
        self.gateway = GatewayLink(options.client, options.status_fd, guard.credentials(), guard.refused)
        self.reader.on_corruption = partial(self.gateway.notify_scrubber, "")
        served_logs = ServedLogs(self.reader, self.watch, self.gateway.state, self.gateway.halted, self.gateway.confirm)
        connections = Connections()
        self._fd_guard = DescriptorGuard(connections)
        self.streams = Streams(served_logs, self.gateway.report_corruption)
        self.peers = PeerCache(self.reader, self.gateway, guard.credentials)
        plans = RangeSplitter(served_logs, self.peers.locations, self.gateway.report_corruption)
        actions = Actions(served_logs, plans, self.gateway, self.watch, queries := QueryReports())
        try:
            self.server = ReadsServer(_location(host, port, guard), self.streams, plans, actions, connections, guard)
        except pa.ArrowException as error:
            raise Unavailable(
                f"the reads port {options.reads} cannot be opened ({error}); "
                "end the process that uses it, or give the gateway another port"
            ) from error
        # With port 0 the system chooses the port, so the own address is known only after the server has bound the port.
        own = _location(host, self.server.port, guard)
        self.peers.own = f"{own.partition('://')[0]}://{options.advertise}" if options.advertise else own
        browser = RecordBrowser(self.reader, self.gateway.report_corruption)
        self._history = History(self.gateway.status, self.streams.meters.read)
        pages = Pages(
            self.reader,
            self.watch,
            self.streams,
            self.server.calls,
            self.gateway,
            queries,
            self.peers,
            browser,
            self._history,
            actions.act_us,
            guard.facts,
        )
        tls = (options.tls_certificate, options.tls_key) if options.tls_certificate else None
        self.admin = AdminServer(listener, pages.table(), guard, tls, open_metrics=options.open_metrics)
        self.admin_port = int(listener.getsockname()[1])

    def run(self) -> int:
        """Serve until SIGTERM, or until the gateway ends; return the exit code."""
        self.admin.start()
        self._history.start()
        fields = {"reads": self.server.port, "admin": self.admin_port, "log": self.reader.log}
        LOG.info("reads are served", extra={"fields": fields})
        busy = False
        while not _sigterm_within(HOUSEKEEPING_S):
            private = process_memory.private_bytes()
            if private > limits.READS_MEMORY_BYTES_MAX:
                fields = {"bytes": private, "limit": limits.READS_MEMORY_BYTES_MAX}
                LOG.error("the reads process exceeds its memory limit; it ends and is restarted", extra={"fields": fields})
                return 1
            self._check_liveness()
            self._guard.refresh()
            # The Flight library takes a certificate only when a server is created, so a new certificate needs a new process.
            if self._certificate_renewed():
                break
            self._fd_guard.check()
            busy = self._trim_when_idle(busy)
        self._stop()
        return 0

    def _certificate_renewed(self) -> bool:
        """True if a new valid certificate exists. The process then ends, so that the next reads process loads the certificate."""
        try:
            renewed = self._guard.renewed()
        except ConfigError as error:
            if str(error) != self._logged_error:
                LOG.error("the new certificate is invalid; the old one stays in use", extra={"fields": {"error": str(error)}})
            self._logged_error = str(error)
            return False
        if renewed:
            LOG.info("there is a new certificate: the reads process restarts to load it")
        return renewed

    _logged_error = ""

    def _check_liveness(self) -> None:
        """Make followers continue at another gateway while this gateway's heartbeat has stopped."""
        silent = self._liveness.silent()
        if silent != self.watch.silent:
            LOG.warning("the gateway does not respond: followers go to another gateway" if silent else "the gateway responds again")
            self.watch.silent = silent

    def _trim_when_idle(self, was_busy: bool) -> bool:
        """Release free memory in the first idle second after a busy one; return True if this second was busy."""
        records = self.streams.meters.records
        busy = records != self._records
        self._records = records
        if was_busy and not busy:
            process_memory.trim()
        return busy

    _records = 0

    def _stop(self) -> None:
        """End the streams with an error that contains the reason, then stop the servers."""
        # The watch stops first, because streams that wait for the frontier would otherwise keep the shutdown of the server waiting.
        self.watch.stop()
        self.peers.stop()
        self._history.stop()
        ending = threading.Thread(target=self.server.shutdown, daemon=True)  # shutdown waits for calls, which may hang
        ending.start()
        self.admin.stop()
        ending.join(timeout=limits.READS_STOP_US_MAX / US)
        # The link closes last, because pages that are still being built request the gateway's status.
        self.gateway.close()


def _location(host: str, port: int, guard: ReadsAuthorizer) -> str:
    scheme = "grpc" if guard.certificate is None else "grpc+tls"
    return f"{scheme}://{Address(host, port)}"


def _sigterm_within(seconds: float) -> bool:
    """Wait for SIGTERM, at most `seconds`; return True if it arrived.

    The signal's number is checked, because CPython 3.11 returns uninitialised memory after a SIGSTOP that outlasts the timeout.
    """
    received = signal.sigtimedwait([signal.SIGTERM], seconds)
    return received is not None and received.si_signo == signal.SIGTERM


def _terminate() -> None:
    LOG.info("the gateway has ended; the reads process ends too")
    # The watcher thread signals the main thread with SIGTERM, because only the main thread can stop the servers in order.
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process. Return the exit code: 0 after SIGTERM, else the exit code of the error."""
    if arguments is None:
        # The first use of pyarrow would import an installed pandas, which takes 45 MB and a third of a second.
        block_pandas()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.parent is not None:
        end_with_parent(options.parent, signal.SIGKILL)  # even a hanging process must release its ports
    # Block SIGTERM before the first thread starts, because threads inherit the signal mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also signals this process, but the gateway decides when it ends
    process_memory.tune()
    # Descriptors are reserved before any connection exists, so that segments can be opened when connections use all others.
    reserved_fds.reserve_descriptors()
    for variable in (FILE_VARIABLE, TOKEN_VARIABLE):
        os.environ.pop(variable, None)  # authenticate with the gateway's key, never with an operator's token
    logging_setup.set_up()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    try:
        return Process(options).run()
    except TuttiError as error:
        LOG.error(str(error))
        return error.exit_code
