"""What a gateway tells of itself: the welcome to clients, its status, and the received-table. JSON shapes are in NOTES.md."""

from __future__ import annotations

import base64
import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import orjson

from gateway.config import Address, Config
from gateway.core import limits
from gateway.core.actions import ViewInstalled
from gateway.data.state import LogState, Producer
from gateway.data.views import view_text
from gateway.data.wire import PROTOCOL, Welcome
from gateway.log.options import Space
from gateway.node import memory
from gateway.node.meters import DiskMeters, Meters


class Decided(Protocol):
    """What is needed of the stack."""

    @property
    def decided(self) -> LogState:
        """The log up to the frontier; not to be changed."""


class Standing(Protocol):
    """What is needed of the driver."""

    meters: Meters
    view: ViewInstalled | None
    position: int
    offset: int
    halted: str
    suspected: str

    @property
    def undecided_bytes(self) -> int:
        """Bytes of the frames that were handed to the disk and are not decided."""

    @property
    def undecided_frames(self) -> int:
        """How many they are."""

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining` or `halted`."""

    @property
    def clients(self) -> int:
        """How many have said Hello."""


class DiskFacts(Protocol):
    """What is needed of the disk thread."""

    space: Space
    failed: str
    full: str
    meters: DiskMeters

    @property
    def depth(self) -> int:
        """How much waits for it."""


class ReadsFacts(Protocol):
    """What is needed of the supervisor of the reads process."""

    pid: int
    starts: int


class LookupFacts(Protocol):
    """What is needed of the lookups."""

    @property
    def waiting(self) -> int:
        """How many duplicates wait."""


class Books:
    """Answers questions. Used by the socket thread; a status costs it a tenth of a millisecond."""

    def __init__(
        self,
        config: Config,
        stack: Decided,
        driver: Standing,
        disk: DiskFacts,
        lookups: LookupFacts,
        reads: ReadsFacts,
    ) -> None:
        """Keep what is asked."""
        self._config = config
        self._stack = stack
        self._driver = driver
        self._disk = disk
        self._lookups = lookups
        self._reads = reads
        self._started_us = time.time_ns() // 1000
        self._version = _version()
        host = config.advertised_address.host
        self._url = f"tutti://{config.advertised_address}"
        self._reads_url = f"grpc://{Address(host, config.reads_address.port)}"
        self._admin_url = f"http://{Address(host, config.admin_address.port)}"

    @property
    def gateway(self) -> str:
        """This gateway's name."""
        return self._config.name

    def welcome(self) -> Welcome:
        """The answer to Hello."""
        config = self._config
        return Welcome(
            protocol=PROTOCOL,
            gateway=config.name,
            group=config.group.name,
            log=self._stack.decided.log.hex(),
            state=self._driver.state,
            version=self._version,
            reads=self._reads_url,
            admin=self._admin_url,
            gateways={config.name: self._url},
            window_bytes=min(limits.WINDOW_BYTES, config.limits.undecided_bytes),
            frame_bytes_max=limits.BODY_BYTES_MAX,
            raw_bytes_max=limits.RAW_BYTES_MAX,
        )

    def status(self) -> bytes:
        """Status as JSON."""
        config, driver, decided = self._config, self._driver, self._stack.decided
        return orjson.dumps(
            {
                "gateway": config.name,
                "pid": os.getpid(),
                "group": config.group.name,
                "log": decided.log.hex(),
                "state": driver.state,
                "reason": driver.halted or self._no_room() or driver.suspected,
                "view": self._view(decided),
                "frontier": driver.offset,
                "start": 0,
                "lag": {config.name: 0},
                "position": driver.position,
                "tick": {"number": decided.tick, "time_us": decided.tick_time},
                "version": self._version,
                "url": self._url,
                "reads": self._reads_url,
                "admin": self._admin_url,
                "data": str(Path(config.data).absolute()),
                "started_us": self._started_us,
                "sessions": driver.clients,
                "producers": len(decided.producers),
                "topics": len(decided.topics),
                "readers": len(decided.readers),
                "undecided": {"frames": driver.undecided_frames, "bytes": driver.undecided_bytes},
                "queues": {"disk": self._disk.depth, "lookups": self._lookups.waiting},
                "disk": self._disk_facts(),
                "memory": {"resident_bytes": memory.resident_bytes()},
                "reads_process": {"pid": self._reads.pid, "starts": self._reads.starts},
                **driver.meters.to_dict(),
            }
        )

    def _no_room(self) -> str:
        """Why the disk takes no new records; empty if it does."""
        disk = self._disk
        return disk.full or (disk.space.reason if disk.space.low else "")

    def _view(self, decided: LogState) -> dict[str, object]:
        view = self._driver.view
        if view is None:
            return {"id": 0, "text": view_text(0), "coordinator": "", "members": []}
        names = {number: voter.name for number, voter in decided.roster.items()}
        return {
            "id": view.view,
            "text": view_text(view.view),
            "coordinator": names.get(view.coordinator, ""),
            "members": [names.get(member, "") for member in view.members],
        }

    def _disk_facts(self) -> dict[str, object]:
        disk = self._disk
        return {
            "free_bytes": disk.space.free_bytes,
            "low": bool(self._no_room()),
            "failed": disk.failed,
            **disk.meters.to_dict(),
        }

    def producers(self) -> bytes:
        """The received-table as JSON, by name; cut where an answer ends (`total` tells)."""
        table = self._stack.decided.producers
        named = sorted((producer.name, number) for number, producer in table.items())[: limits.PRODUCERS_AN_ANSWER_MAX]
        lines = [_line(number, table[number]) for _, number in named]
        return orjson.dumps({"total": len(table), "producers": lines})

    def epoch_of(self, name: str) -> int:
        """The current epoch of a producer, 0 if it is not known."""
        decided = self._stack.decided
        number = decided.producer_number(name)
        return decided.producers[number].epoch if number else 0


def _line(number: int, producer: Producer) -> dict[str, object]:
    line: dict[str, object] = {
        "name": producer.name,
        "number": number,
        "epoch": producer.epoch,
        "sequence": producer.sequence,
        "closed": producer.closed,
        "last_seen_us": producer.last_seen,
    }
    try:
        line["progress"] = producer.progress.decode()
    except UnicodeDecodeError:
        line["progress_base64"] = base64.b64encode(producer.progress).decode()
    return line


def _version() -> str:
    try:
        return version("tutti-ingest")
    except PackageNotFoundError:
        return "unknown"
