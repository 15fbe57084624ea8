"""A log without gateways, and the files connector on it: sent records commit later, and the process may crash at each step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tutti.errors import BufferFull, Fenced, TuttiError
from tutti_connect.files import session as session_module
from tutti_connect.files.config import SourceConfig, load_source_config
from tutti_connect.files.connector import Connector
from tutti_connect.files.discovery.ledger import Ledger
from tutti_connect.files.session import Session


class Crash(BaseException):
    """The process ends here, as by SIGKILL."""


class Row(NamedTuple):
    """A committed record."""

    topic: str
    key: bytes | None
    value: bytes | None
    time_us: int


class Log:
    """What all instances of the connector share: committed records, the progress, the newest epoch."""

    def __init__(self, chance: Random | None = None) -> None:
        self.chance = chance or Random(1)
        self.rows: list[Row] = []
        self.progress = b""
        self.epoch = 0
        self.undecided: list[tuple[str, pa.RecordBatch, bytes, Any]] = []
        self.steps = -1  # until the process crashes; never when negative
        self.fail: TuttiError | None = None  # what the next frame meets

    def step(self) -> None:
        """One more step, before or after which a process may end."""
        if self.steps == 0:
            raise Crash
        self.steps -= self.steps > 0

    def decide(self, count: int) -> None:
        """Commit so many of the frames that are on their way."""
        for topic, batch, progress, outcome in self.undecided[:count]:
            times: Any = batch.column("timestamp").cast(pa.int64()).to_pylist()
            columns: Any = batch.column("key").to_pylist(), batch.column("value").to_pylist(), times
            self.rows += [Row(topic, *row) for row in zip(*columns, strict=True)]
            self.progress = progress
            outcome(None, Receipt(batch.num_rows))
        del self.undecided[:count]

    def values(self, topic: str = "t") -> list[bytes | None]:
        """Of all records of a topic."""
        return [row.value for row in self.rows if row.topic == topic]


class Receipt:
    """As the client's."""

    def __init__(self, count: int) -> None:
        self.count, self.error = count, None

    def done(self) -> bool:
        return False


class FakeProducer:
    """As the client's, on a `Log`."""

    def __init__(self, log: Log, room: int) -> None:
        log.decide(log.chance.randint(0, len(log.undecided)))  # of the older instance's: some came through, in order
        log.undecided.clear()
        log.epoch += 1
        self.log, self.epoch, self.room = log, log.epoch, room

    def resume(self) -> Any:
        self.log.step()

        class Resume(NamedTuple):
            sequence: int
            progress: bytes

        return Resume(len(self.log.rows), self.log.progress)

    def send_batch(self, topic: str, batch: pa.RecordBatch, progress: bytes, outcome: Any) -> Receipt:
        log = self.log
        if self.epoch != log.epoch:
            raise Fenced("another instance")
        if len(log.undecided) >= self.room:
            log.decide(log.chance.randint(1, self.room))
            raise BufferFull("full")
        assert len(progress) <= 256
        log.step()
        if log.fail is not None:
            error, log.fail = log.fail, None
            raise error
        log.undecided.append((topic, batch, progress, outcome))
        log.step()
        return Receipt(batch.num_rows)

    def flush(self, _timeout: float) -> int:
        self.log.decide(len(self.log.undecided))
        return 0

    def close(self) -> None:
        pass


class Rig:
    """A directory, a log, and the connector between them, turn by turn."""

    def __init__(self, root: Path, log: Log | None = None, top: str = "", files: str = 'format = "lines"', more: str = "") -> None:
        self.root = root
        self.incoming = root / "in"
        self.incoming.mkdir(exist_ok=True)
        self.log = log or Log()
        self._text = top, files, more
        self.configure()

    def configure(self, files: str | None = None) -> None:
        """Write and load its configuration."""
        top, given, more = self._text
        top = top or 'topic = "t"'
        text = (
            f'name = "f"\ngateways = "tutti://127.0.0.1:1"\nstate = "{self.root}/state"\nquarantine = "{self.root}/q"\n{top}\n'
            f'[files]\ndirectory = "{self.incoming}"\nquiet_ms = 0\npoll_ms = 10\n{files or given}\n{more}\n'
        )
        path = self.root / "files.toml"
        path.write_text(text)
        self.config: SourceConfig = load_source_config(str(path))

    @contextmanager
    def session(self) -> Iterator[tuple[Connector, Session]]:
        """One epoch of it."""
        connector = Connector(self.config)
        connector.directory.check()
        ledger = Ledger(self.config.state, self.config.name, grows=self.config.files.grows)
        ledger._database.execute("PRAGMA synchronous=OFF")  # no power is cut here, and many ledgers are written
        write = ledger.write

        def written() -> None:
            self.log.step()
            write()
            self.log.step()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "Producer", lambda *_, **__: FakeProducer(self.log, 3))
            patch.setattr(ledger, "write", written)
            try:
                yield connector, Session(connector, ledger, threading.Event())
            finally:
                ledger.close()

    def turns(self, count: int = 2, between: Callable[[], object] = lambda: None) -> Connector:
        """Run so many scans of the directory with all their effects, and an orderly end."""
        with self.session() as (connector, session):
            session._disposal.carry_out()
            for number in range(count):
                if number:
                    between()
                session._scan()
                self.log.decide(len(self.log.undecided))
                session._process_outcomes()
                session._write_ledger()
            return connector

    def crash(self, steps: int) -> bool:
        """One turn that ends as by SIGKILL after so many steps; False if there were not so many."""
        self.log.steps = steps
        try:
            self.turns(1)
        except Crash:
            return True
        finally:
            self.log.steps = -1
        return False

    def write(self, name: str, data: bytes, *, append: bool = False) -> None:
        """A file of the directory."""
        path = self.incoming / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab" if append else "wb") as file:
            file.write(data)
