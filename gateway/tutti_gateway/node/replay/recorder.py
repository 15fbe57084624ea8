"""Recorder of `tutti serve --record`: writes every event of the stack, with both clocks and the resulting actions, to a file.

The recorder wraps the stack and has the same interface. An event is encoded before the step, because the step assigns positions to
the event's frames; the actions are encoded after the step. A separate thread compresses and writes the recording, and the gateway
never waits for that thread. If the thread lags too far or the disk is full, the recording ends with a reason, but the gateway
continues. A recording can be replayed up to its last step (`rerun`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from structlog.typing import FilteringBoundLogger

from tutti.errors import ConfigError, remedy
from tutti.runtime.durable_files import make_directory
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.codec import encode_lean_actions, encode_lean_event
from tutti_gateway.core.protocol.events import Event, Now, StackConfig
from tutti_gateway.node.common.interfaces import Stack
from tutti_gateway.node.common.thread_join import join_bounded
from tutti_gateway.node.replay.recording_format import (
    SUFFIX,
    Closed,
    Header,
    Item,
    Raised,
    Stepped,
    block_bytes,
    item_bytes,
    start_bytes,
)

US = 1_000_000


class Recorder:
    """A stack whose run is recorded.

    Attributes:
        path: the file of the recording.
        ended: reason why the recording has ended; empty while it continues.
    """

    def __init__(self, stack: Stack, directory: str, header: Header, log: FilteringBoundLogger) -> None:
        """Create a recording in `directory`; delete this gateway's oldest recordings there to stay below their size limit.

        Raises:
            ConfigError: the file cannot be created.
        """
        self._stack = stack
        self._log = log
        self.ended = ""
        started = datetime.fromtimestamp(header.started_us / US, UTC)
        name = f"{header.gateway}-{started:%Y%m%dT%H%M%S.%fZ}{SUFFIX}"
        self.path = Path(directory, name)
        try:
            make_directory(self.path.parent)
            _delete_old_recordings(self.path.parent, header.gateway)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _cannot_record(directory, error) from error
        try:
            self._written = self._write(start_bytes())
        except OSError as error:
            os.close(self._fd)
            raise _cannot_record(directory, error) from error
        self._waiting: deque[bytes] = deque([item_bytes(header)])
        self._queued_bytes = self._written_bytes = 0  # only one thread writes each counter, so no lock is needed
        self._ending = False
        self._wake = threading.Event()
        # A daemon does not keep the process from exiting when the disk of the recording hangs.
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        log.info("recording this run", file=str(self.path), bytes_max=limits.RECORD_RUN_BYTES_MAX)

    # For the socket thread

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        """Step the stack, and record it."""
        if self.ended:
            return self._stack.step(event, now)
        encoded = msgspec.Raw(encode_lean_event(event))  # encoded before the step, because the step assigns positions to the frames
        try:
            actions = self._stack.step(event, now)
        except Exception as error:
            # The stack accepts no event after an error (lifecycle, L7), so the error is the last item that a replay must reproduce.
            self._append(Raised(now.mono_us, now.wall_us, encoded, f"{type(error).__name__}: {error}"))
            raise
        self._append(Stepped(now.mono_us, now.wall_us, encoded, msgspec.Raw(encode_lean_actions(actions))))
        return actions

    def _append(self, item: Item) -> None:
        data = item_bytes(item)
        self._waiting.append(data)
        self._queued_bytes += len(data)
        waiting = self._queued_bytes - self._written_bytes
        if waiting > limits.RECORD_WAITING_BYTES_MAX:
            self._end("the disk of the recording is too slow")
        elif waiting >= limits.RECORD_BLOCK_BYTES:  # less than a block is written at the next interval
            self._wake.set()

    def _end(self, reason: str) -> None:
        """End the recording for a reason, and log the reason; later calls have no effect."""
        if not self.ended:
            self.ended = reason
            self._log.warning("the recording of this run ends", file=str(self.path), reason=reason)
            self._wake.set()

    def stop(self) -> None:
        """Write the remaining items. Wait for a bounded time only."""
        self._ending = True
        self._wake.set()
        join_bounded(self._thread, lambda: False)

    # The thread

    def _run(self) -> None:
        try:
            while not self.ended and not self._ending:
                self._wake.wait(limits.RECORD_FLUSH_US / US)
                self._wake.clear()
                self._write_blocks()
            self._write_blocks()
            self._write(block_bytes(item_bytes(Closed(self.ended or "the gateway stopped"))))
        except OSError as error:
            self._end(f"the recording cannot be written: {error.strerror}")
        except Exception as error:  # noqa: BLE001 - if the thread died silently, the recording would look complete
            self._end(f"a defect in the recorder: {type(error).__name__}: {error}")
        finally:
            os.close(self._fd)
            self._waiting.clear()

    def _write_blocks(self) -> None:
        waiting = self._waiting
        while waiting:
            items: list[bytes] = []
            size = 0
            # One item may exceed a block, because a step that installs a snapshot contains the whole snapshot.
            while waiting and (not items or size + len(waiting[0]) <= limits.RECORD_BLOCK_BYTES):
                items.append(waiting.popleft())
                size += len(items[-1])
            self._written_bytes += size
            if size > limits.RECORD_BLOCK_BYTES_MAX:
                self._end(f"one step has {size} bytes, above the limit of {limits.RECORD_BLOCK_BYTES_MAX}")
                waiting.clear()
                return
            if not self._has_space():
                waiting.clear()
                return
            self._written += self._write(block_bytes(b"".join(items)))

    def _has_space(self) -> bool:
        if self._written >= limits.RECORD_RUN_BYTES_MAX:
            self._end(f"the recording has reached its limit of {limits.RECORD_RUN_BYTES_MAX >> 20} MiB")
            return False
        found = os.fstatvfs(self._fd)
        free = found.f_bavail * found.f_frsize
        if free < limits.RECORD_FREE_BYTES_MIN:
            self._end(f"its disk has {free >> 20} MiB free; the last {limits.RECORD_FREE_BYTES_MIN >> 20} MiB are kept for the log")
            return False
        return True

    def _write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        return len(data)


def _cannot_record(directory: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"the run cannot be recorded in {directory}: {error.strerror}; {remedy(error, 'name a directory to write in')}"
    )


def header_of(gateway: str, release: str, config: StackConfig, now: Now) -> Header:
    """Return the header of a recording that begins now."""
    return Header(release, gateway, now.wall_us, config)


def _delete_old_recordings(directory: Path, gateway: str) -> None:
    """Delete the oldest recordings of the gateway, so that the remaining ones and a new one stay below the size limit."""
    stamp = len("20260101T000000.000000Z")
    # Gateway names may contain dashes, so the fixed length of the time stamp separates the name from the stamp.
    runs = [path for path in directory.glob(f"*{SUFFIX}") if path.stem[: -stamp - 1] == gateway]
    left = limits.RECORD_KEPT_BYTES_MAX - limits.RECORD_RUN_BYTES_MAX
    # Stamps with fixed fields sort by time, even if a copy has changed the modification times of the files.
    for path in sorted(runs, key=lambda path: path.stem, reverse=True):
        left -= path.stat().st_size
        if left < 0:
            path.unlink(missing_ok=True)
