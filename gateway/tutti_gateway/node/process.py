"""Assembly of a gateway process: creates its parts, runs them, and closes them in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute  # noqa: F401 - imported now, because later the import could lack a file descriptor

from tutti import limits as common_limits
from tutti.data.lane_name import LaneName
from tutti.errors import Damaged, DiskFull, disk_remedy
from tutti.log.files.data_directory import DataDirectory, open_directory
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import RESERVE
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti.log.read.lane_reader import last_known_end
from tutti.log.read.reader import LogReader
from tutti.runtime import malloc
from tutti.security.certificates import CertificateWatch
from tutti.security.tokens import Tokens
from tutti_gateway.config import Config
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Identity, StackConfig, Started
from tutti_gateway.core.stack import Stack
from tutti_gateway.core.view.group_status import PRIMARY, GroupStatus
from tutti_gateway.log.lanes.lane_logs import LaneLogs, path_of_disk
from tutti_gateway.log.write.segment import prepared_paths
from tutti_gateway.log.writer import LogWriter
from tutti_gateway.node.clients.duplicate_lookup import DuplicateLookup
from tutti_gateway.node.clients.port import ClientPort
from tutti_gateway.node.common import interfaces, process_memory
from tutti_gateway.node.common import logging_setup as logs
from tutti_gateway.node.common.clock import Clock
from tutti_gateway.node.common.counters import GatewayCounters
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.common.security_watch import SecurityWatch
from tutti_gateway.node.common.thread_names import name_thread
from tutti_gateway.node.disk.lane_thread import LaneThread
from tutti_gateway.node.disk.log_thread import LogThread
from tutti_gateway.node.driver import Driver, DriverInput
from tutti_gateway.node.loop import Loop
from tutti_gateway.node.peers.open_transport import open_transport
from tutti_gateway.node.peers.peer_network import PeerNetwork
from tutti_gateway.node.replay.recorder import Recorder, header_of
from tutti_gateway.node.status.reads_supervisor import Notifier, Supervisor
from tutti_gateway.node.status.snapshot import (
    DiskSnapshot,
    DriverSnapshot,
    GatewayIdentity,
    GroupSnapshot,
    LanesSnapshot,
    Snapshot,
)
from tutti_gateway.node.status.status import StatusDocuments, release
from tutti_gateway.node.status.status_socket import StatusSocketServer
from tutti_gateway.node.status.trace import Tracer

if TYPE_CHECKING:
    from tutti_gateway.node.clients.authorization import Authorizer
    from tutti_gateway.transport.keys import Keyring

US = 1_000_000
US_PER_MS = 1000
NS_PER_US = 1000
FAILED = 1

_CORRUPT_END = (
    "the end of the log cannot be read; when the group forms a view, another gateway that has these frames sends copies; "
    "without one, run `tutti log repair`"
)


class Gateway:
    """The parts of one gateway process. If a part cannot be opened, all parts that are already open are closed."""

    def __init__(
        self,
        config: Config,
        reads: Supervisor,
        notifier: Notifier,
        status_socket: StatusSocketServer,
        opened: contextlib.ExitStack,
        record: str = "",
    ) -> None:
        """Open everything.

        Args:
            config: the gateway's configuration.
            reads: supervisor of the reads process, which is already running or starts as soon as the log exists.
            notifier: the pipe to the reads process.
            status_socket: the socket at which the reads process requests the status.
            opened: exit stack that closes the opened parts in reverse order.
            record: directory in which to record the run; empty for none.
        """
        # Configure the allocator before any thread starts, because glibc gives each new thread a heap.
        process_memory.tune()
        self._handlers: dict[int, Any] = {}
        # runs after all other callbacks, so that no signal kills the process while its parts are being closed
        opened.callback(self._restore_signals)
        self._config = config
        self._log = log = logs.set_up(config.name, config.logging.level)
        self._inbox: Mailbox[DriverInput] = Mailbox()
        self._signals = self._waited_s = 0
        self._loop_ended = threading.Event()
        self._loop_error: BaseException | None = None
        self._disk_hangs = self._ready_printed = self._clock_apart = False
        self._stop_us = stop_us_max(config.timers.heartbeat_ms * US_PER_MS)
        self._stop_by = float("inf")
        self._logged_reason = self._waits = ""
        self._reads = reads
        # The log and the lanes share one storage object, so that both date their snapshot files by the group's clock (log, D29).
        self._storage = Storage()
        name, group = config.name, config.group
        with _remedy_named(config):
            # The lock on the directory is held from before recovery until all disk threads have ended (log, D7).
            self._directory = open_directory(config.data, gateway=name, group=group.name)
        opened.callback(self._close_directory)
        self._keyring, self._tokens = _security(config)
        self._security = SecurityWatch(self._tokens, self._keyring, _certificate(config), log)
        self._port = opened.enter_context(contextlib.closing(self._open_port()))
        options = _log_options(config)
        with _remedy_named(config):
            writer, self._recovered = LogWriter.open(self._directory, options, self._storage)
        self._log_recovery()
        # `writing` closes the log only if the start fails; a started disk thread closes the log itself.
        writing = opened.enter_context(contextlib.ExitStack())
        writing.callback(writer.close)
        if not self._recovered.log:
            check_free_space(self._directory, options)
        reads.attach(log, self._inbox.wake)  # wakes the loop when reads are served, so that it prints the ready line
        self._disk = LogThread(writer, self._inbox.put, notifier.notify, log)
        lanes = self._open_lanes(options, notifier, opened)
        path = self._directory.path
        # Both lookups open their log at the first duplicate, because a new directory has neither a log nor a lane yet.
        self._lookups = DuplicateLookup(lambda: LogReader(path), self._inbox.put, log)
        # The lookup in a lane is by epoch, because the sequences of each epoch start at 1.
        self._lane_lookups = DuplicateLookup(
            lambda: LogReader(path_of_disk(path, self._directory.incarnation)), self._inbox.put, log, by_epoch=True
        )
        self._transport = opened.enter_context(
            contextlib.closing(open_transport(config, self._directory.incarnation, release(), log, begun=bool(self._recovered.log)))
        )
        self._driver = self._make_driver(writer, lambda stack: self._wrapped(stack, record, opened))
        self._loop = Loop(
            self._driver, self._port, self._transport, self._inbox, writer.heartbeat, log, self._log_changes, self._disk
        )
        self._disk.run_loop = self._run_loop
        status_socket.open(
            self._inbox.put,
            self._disk.suspect,
            self._lanes.suspect,
            self._tokens.count if self._tokens is not None else lambda _reason, _times: None,
        )
        self._start_threads(opened, writing.pop_all().close, lanes.pop_all().close)

    def _start_threads(self, opened: contextlib.ExitStack, close_log: Callable[[], None], close_lanes: Callable[[], None]) -> None:
        """Start all threads but that of the loop. Each one stops with `opened`, and the disk threads then close their files."""
        self._disk.start()
        opened.callback(self._stop_disk, close_log)  # from now on only the disk thread and the loop use the log
        self._lanes.start()
        opened.callback(self._stop_lanes, close_lanes)
        for lookups in (self._lookups, self._lane_lookups):
            lookups.start()
            opened.callback(lookups.stop, self._hurry)

    def _log_recovery(self) -> None:
        """Log what an operator must know about the recovery of the log."""
        if self._directory.renewed:
            self._log.warning(self._directory.renewed)
        if (damage := self._recovered.damage) is not None:
            self._log.error(_CORRUPT_END, first=damage.first, last=damage.last)

    def _open_port(self) -> ClientPort:
        config = self._config
        if self._keyring is None:
            return ClientPort(*config.client_address)
        from tutti.zmtp.curve import key_pair_from_text  # noqa: PLC0415 - only a gateway with keys needs the cryptography

        own = self._keyring.own
        keys = key_pair_from_text(own.public, own.secret)
        if self._tokens is None:
            return ClientPort(*config.client_address, keys)
        return ClientPort(*config.client_address, keys, self._is_authenticated, self._may_read)

    def _is_authenticated(self, routing: bytes) -> bool:
        """True if the connection has an authenticated session."""
        return self._driver.sessions.has(routing)

    def _may_read(self, routing: bytes) -> bool:
        """True if the client port may read a connection: the batches that wait for a quota are below their memory limits."""
        return self._driver.may_read(routing)

    def _authorizer(self, stack: Stack) -> Authorizer | None:
        """Return the authorizer of clients, or None if clients need no token."""
        if self._keyring is None or self._tokens is None:
            return None
        from tutti_gateway.node.clients.authorization import Authorizer  # noqa: PLC0415 - only a gateway with tokens needs this import

        return Authorizer(self._tokens, self._keyring, self._port.peer, lambda: stack.decided.topics)

    def _open_lanes(self, options: LogOptions, notifier: Notifier, opened: contextlib.ExitStack) -> contextlib.ExitStack:
        """Open the lanes of the directory. Return the exit stack that closes them."""
        lane_logs = self._lane_logs = LaneLogs(self._directory, options, self._storage)
        lanes = opened.enter_context(contextlib.ExitStack())
        lanes.callback(lane_logs.close)
        self._recovered = msgspec.structs.replace(self._recovered, lanes=lane_logs.start(self._recovered.state))
        for problem in lane_logs.messages:
            self._log.error(problem)
        halted = [LaneName(lane.origin, lane.incarnation) for lane in self._recovered.lanes if lane.halted]
        ends = {lane: end for lane in halted if (end := last_known_end(lane_path(self._directory.path, lane))) is not None}
        self._lanes = LaneThread(lane_logs, self._inbox.put, notifier.notify, self._log, ends)
        self._disk.other_full = lambda: self._lanes.full
        return lanes

    def _wrapped(self, stack: Stack, record: str, opened: contextlib.ExitStack) -> interfaces.Stack:
        """Return the stack, wrapped by a recorder or a tracer if the configuration asks for one."""
        observed: interfaces.Stack = stack
        if record:
            config = _stack_config(self._config)
            recorder = Recorder(stack, record, header_of(self._config.name, release(), config, Clock().now()), self._log)
            opened.callback(recorder.stop)
            observed = recorder
        if self._config.logging.level == "debug":
            incarnation = self._directory.incarnation
            observed = Tracer(observed, lambda: stack.decided, lambda: LaneName(stack.me, incarnation), self._log)
        return observed

    def _make_driver(self, writer: LogWriter, observed: Callable[[Stack], interfaces.Stack]) -> Driver:
        config = self._config
        # The stack seeds the generator with the entropy in `Started`, so the replay of a recording draws the same numbers.
        stack = Stack(Random, _stack_config(config))
        survey = self._group = GroupStatus(stack)
        clock = Clock()
        # Retention runs in the disk threads and measures age by the group's clock (membership, M26).
        self._disk.group_time_us = self._storage.group_time_us = lambda: survey.group_time_us(clock.mono_us())
        authorizer = self._authorizer(stack)
        return Driver(
            observed(stack),
            clock=clock,
            disk=self._disk,
            lanes=self._lanes,
            clients=self._port,
            lookups=self._lookups,
            lane_lookups=self._lane_lookups,
            network=PeerNetwork(self._transport, stack, self._log),
            frontier=writer.frontier,
            documents=self._documents(stack, authorizer),
            counters=GatewayCounters(),
            log=self._log,
            sessions_max=config.limits.sessions,
            undecided_bytes_max=config.limits.undecided_bytes,
            entropy=os.urandom(16),
            authorizer=authorizer,
        )

    def _documents(self, stack: Stack, authorizer: Authorizer | None) -> Callable[[DriverSnapshot], StatusDocuments]:
        """Return a function that creates the gateway's status documents from a snapshot of its driver."""
        identity = GatewayIdentity.of(self._config, self._directory.incarnation, release(), time.time_ns() // NS_PER_US)

        def documents(driver: DriverSnapshot) -> StatusDocuments:
            snapshot = Snapshot(
                identity=identity,
                decided=stack.decided,
                driver=driver,
                group=GroupSnapshot.of(self._group),
                disk=DiskSnapshot.of(self._disk),
                lanes=LanesSnapshot.of(self._lanes, stack.lane_halted, stack.lane_members),
                lookups=self._lookups.waiting,
                reads=(self._reads.pid, self._reads.starts),
                security=self._security.to_dict() | ({} if authorizer is None else authorizer.to_dict()),
                resident_bytes=process_memory.resident_bytes(),
            )
            return StatusDocuments(snapshot)

        return documents

    def _log_changes(self) -> None:
        """Log the reason why this gateway accepts no records, and problems, whenever they change. Called once a second."""
        self._security.check()
        reason = self._group.reason
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                self._log.warning(reason)
        self._check_clock()
        waits = self._driver.documents().waits  # unlike `GroupStatus.waits`, this text includes the refusals of peers
        self._waited_s = self._waited_s + 1 if waits == self._waits else 0
        self._waits = waits
        if waits and self._waited_s == limits.WAIT_LOG_S:
            self._log.warning(f"this gateway accepts no ordered records: {waits}", state=self._group.state)

    def _check_clock(self) -> None:
        """Log once when the host clock begins to differ from the group's clock, and once when it agrees again."""
        ahead_us = self._group.clock_ahead_us
        apart = abs(ahead_us) > limits.CLOCK_APART_US
        if apart == self._clock_apart:
            return
        self._clock_apart = apart
        if not apart:
            self._log.info("the wall clock of this host agrees with the group's again")
            return
        how = f"{abs(ahead_us) // 1_000_000} s {'ahead of' if ahead_us > 0 else 'behind'}"
        self._log.warning(f"the wall clock of this host is {how} the group's, which ticks and retention use: correct the clock")

    def run(self) -> int:
        """Start the stack and serve until a stop. Return the exit code."""
        config = self._config
        identity = Identity(config.name, self._directory.incarnation, config.group.name, config.founders)
        self._log.info("starting", listen=config.listen, data=self._directory.path, pid=os.getpid())
        self._driver.start(Started(identity, os.urandom(16), self._recovered))
        # In a new directory the log exists only now, so the reads process starts here; otherwise it is already running.
        self._reads.start()
        # The main thread only waits, so that it handles signals at once while an inline sync stalls.
        threading.Thread(target=self._run_socket_thread, name="loop", daemon=True).start()
        # A signal that arrives just before the wait does not end it, so the wait has parts of half a second.
        while not self._loop_ended.wait(common_limits.POLL_US_MAX / US):
            pass
        if self._loop_error is not None:
            raise self._loop_error
        return self._end()

    def _run_socket_thread(self) -> None:
        name_thread("loop")
        if not self._run_loop():
            name_thread("disk")
            self._disk.serve()

    def _run_loop(self) -> bool:
        """Run the loop in the calling thread. Return True at the end of the loop, and False if another thread has taken it over."""
        try:
            if not self._loop.run(self._is_done):
                return False
        except BaseException as error:  # noqa: BLE001 - the main thread raises the error, and the process ends
            self._loop_error = error
        self._loop_ended.set()
        return True

    def _is_done(self) -> bool:
        """True if the loop must end. The loop calls this in each iteration."""
        if self._driver.removed:
            return True  # the process ends at once, because its log may differ from the group's log
        if self._signals or self._driver.leave_requested:
            if self._signals > 1 or self._driver.halted or self._driver.stopped or time.monotonic() > self._stop_by:
                return True
            if not self._driver.leaving:
                self._stop_by = time.monotonic() + self._stop_us / US
                self._reads.stop_restarting()
                self._log.info("stopping: no new records are accepted, undecided ones are finished")
                self._driver.leave()
                # A stack that stops within `leave` ends the loop at once, without another sleep of up to half a second.
                return self._driver.stopped
        # The ready line promises writes and reads, so the group must be primary and the reads process must accept connections.
        if not self._ready_printed and self._reads.ready and not self._driver.halted and self._group.state == PRIMARY:
            self._ready_printed = True
            self._print_ready()
            malloc.use_huge_pages()  # called after all imports, because it applies only to memory that is already resident
        return False

    def _print_ready(self) -> None:
        config = self._config
        line = {
            "ready": True,
            "url": f"tutti://{config.advertised_address}",
            "name": config.name,
            "pid": os.getpid(),
            "data": str(Path(config.data).absolute()),
            "frontier": self._driver.offset,
        }
        try:
            print(json.dumps(line), flush=True)  # noqa: T201 - the process that started the gateway waits for this line
        except OSError as error:  # a closed pipe or a full disk must not stop the gateway
            self._log.warning("the ready line could not be written", error=str(error))
            # without this, the flush of stdout at exit would raise the same error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self._log.info("ready", url=line["url"], frontier=self._driver.offset)

    def _end(self) -> int:
        self._port.close()  # the port closes before the slow steps, so that clients reconnect to other gateways at once
        driver = self._driver
        if driver.removed:
            # The mark keeps every later process off the disk, which a forced roster has excluded from the group (membership, M25).
            self._directory.mark_left(driver.removed)
        orderly = driver.stopped and not driver.halted
        if driver.stopped or driver.halted:
            why = driver.halted or "as asked"
        else:
            why = "second signal" if self._signals > 1 else f"undecided records were not decided within {self._stop_us // US} s"
        self._log.info("stopped", why=why, frontier=driver.offset, undecided_frames=driver.undecided_frames)
        # A second signal is the operator's choice not to wait, so the exit code reports no failure.
        return 0 if orderly or (self._signals > 1 and not driver.halted) else FAILED

    def _hurry(self) -> bool:
        return self._signals > 1

    def _stop_disk(self, close_log: Callable[[], None]) -> None:
        self._disk_hangs |= not self._disk.stop(close_log, self._hurry)

    def _stop_lanes(self, close_logs: Callable[[], None]) -> None:
        self._disk_hangs |= not self._lanes.stop(close_logs, self._hurry)

    def _close_directory(self) -> None:
        if not self._disk_hangs:  # an abandoned thread may still write, so the lock is kept until the process ends
            self._directory.close()

    def handle_signals(self) -> None:
        """Handle SIGTERM and SIGINT until all parts are closed.

        The first signal begins an orderly stop. A second signal ends the process without waiting for other gateways or the disk.
        """

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1
            self._reads.stop_restarting()
            # Python resumes an interrupted poll after a signal handler (PEP 475), so only the eventfd ends the sleep of the loop.
            self._inbox.wake()

        # Python installs signal handlers only in the main thread; a gateway in another thread runs without handlers.
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def _security(config: Config) -> tuple[Keyring | None, Tokens | None]:
    """Return the keys of gateways and the tokens of clients, each None if it is not configured.

    Raises:
        ConfigError: a key or token file is invalid.
    """
    security = config.security
    if not (security.secret_key and security.public_keys):
        return None, None
    from tutti_gateway.transport.keys import Keyring  # noqa: PLC0415 - only a gateway with keys needs the cryptography

    tokens = None if security.tokens is None else Tokens(security.tokens)
    return Keyring.open(security.secret_key, security.public_keys, config.name), tokens


def _certificate(config: Config) -> CertificateWatch | None:
    """Return the watch of the gateway's certificate; None without a certificate."""
    security = config.security
    if not (security.tls_certificate and security.tls_key):
        return None
    return CertificateWatch(security.tls_certificate, security.tls_key, config.advertised_address.host)


def stop_us_max(heartbeat_us: int) -> int:
    """Return the time limit of an orderly stop, us: at least 30 s, and two heartbeats more than the stack waits for other
    gateways.
    """
    return max(common_limits.STOP_US_MAX, (limits.LEAVE_HEARTBEATS + 2) * heartbeat_us)


def check_free_space(directory: DataDirectory, options: LogOptions) -> None:
    """Check that the disk has free space for the first segment. Without that space the gateway would start but accept no records.

    Raises:
        DiskFull: the disk has less free space than a segment needs.
    """
    # A prepared segment or the reserve file can become the first segment, which then needs no free space.
    if prepared_paths(directory.path) or os.path.exists(os.path.join(directory.path, RESERVE)):
        return
    free = directory.storage.free_bytes(directory.path)
    if free < options.segment_bytes:
        raise DiskFull(
            f"{free >> 20} MiB are free on the disk of {directory.path}; a new log needs {options.segment_bytes >> 20} MiB, and "
            f"accepting records needs {options.disk_low_bytes >> 20} MiB: free some space, or use a directory on another disk"
        )


def _stack_config(config: Config) -> StackConfig:
    timers = config.timers
    return StackConfig(
        heartbeat_us=timers.heartbeat_ms * US_PER_MS,
        tick_interval_us=timers.tick_ms * US_PER_MS,
        atomic_period_heartbeats=timers.atomic_heartbeats,
        producers_max=config.limits.producers,
        topics_max=config.limits.topics,
        undecided_bytes_max=config.limits.undecided_bytes,
        lanes=True,
    )


def _log_options(config: Config) -> LogOptions:
    log, retention = config.log, config.retention
    return LogOptions(
        segment_bytes=log.segment_bytes,
        first_segment_bytes=log.first_segment_bytes,
        prepared_segments=log.prepared_segments,
        disk_low_bytes=log.disk_low_bytes,
        retention_bytes=retention.bytes,
        retention_us=retention.time_us,
        keep_for=tuple(retention.keep_for),
        vote_mark=log.vote_mark,
    )


@contextlib.contextmanager
def _remedy_named(config: Config) -> Iterator[None]:
    """Add two remedies to the error of a corrupt directory: one for a group with other gateways, one for a single gateway.

    Only the operator knows which remedy applies: the configuration lists only the founders, and the roster is in the unreadable
    log.
    """
    try:
        yield
    except Damaged as error:
        name, group = config.name, config.group.name
        what = (
            f"If group {group!r} has other gateways (`tutti members list` at one of them shows them), those have the log: move "
            f"{config.data} aside, start {name} with an empty directory there, and {disk_remedy(name)}. If {name} "
            f"is its only gateway, no other copy exists: restore {config.data} from a backup, or the records from the archive"
        )
        raise Damaged(f"{error}. {what}", error.position) from error
