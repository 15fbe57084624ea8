"""Compiles the load generator at its first use, and runs it over open connections."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.figures import percentile

SOURCE = Path(__file__).with_name("generator.c")
KEPT = Path(__file__).resolve().parents[2] / "build" / "load-generator"
SILENCE_S = 30.0  # time without a receipt after which a run fails
_RUN_S_MAX = 600.0
_COMPILE_S_MAX = 120.0
_PLAN = struct.Struct("=QQIIIIIIII")
_OPENED = struct.Struct("=QQIi")
_RESULT = struct.Struct("=QQ")


class Message(NamedTuple):
    """The bytes of one record's message, and the offsets of the fields that differ between records.

    Attributes:
        answer_bytes: size of the answer of a bare server, 0 for a gateway.
    """

    data: bytes
    producer_at: int = 0
    sequence_at: int = 0
    epoch_at: int = 0
    answer_bytes: int = 0


class Opened(Protocol):
    """An open connection, with the producer that may send over it and the sequence of its next record."""

    producer: int
    epoch: int
    sequence: int

    def fileno(self) -> int:
        """Return the descriptor of the socket."""


class Load(NamedTuple):
    """Result of a run.

    Attributes:
        records: number of records, each of which has its receipt.
        elapsed_s: from the first send to the last receipt, s.
        cpu_s: CPU time of the load generator, s.
        times_ms: time to each receipt, ms, sorted. In a paced run, a time begins when the record is due.
    """

    records: int
    elapsed_s: float
    cpu_s: float
    times_ms: npt.NDArray[np.float64]

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.elapsed_s

    def at_ms(self, share: float) -> float:
        """Return the time (ms) within which `share` of the records got their receipts."""
        return float(percentile(self.times_ms, share))  # type: ignore[arg-type]  # an array is a sequence of numbers


def compiler() -> str | None:
    """Return the path of the C compiler, which the variable CC may name; None if there is none."""
    named = os.environ.get("CC")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def lacking() -> str:
    """Return what the load generator lacks on this machine: an empty string, or a text for the user."""
    if compiler() is None:
        named = os.environ.get("CC")
        return f"the C compiler {named!r} that the variable CC names" if named else "a C compiler (cc, gcc or clang)"
    return ""


@cache
def program() -> Path:
    """Compile the load generator unless a program of the same source exists, and return its path.

    Raises:
        SystemExit: the machine has no compiler, or the compilation fails.
    """
    if lacking():
        raise SystemExit(f"the load generator needs {lacking()}: install one, for example the Debian package gcc with libc6-dev")
    source = SOURCE.read_bytes()
    made = KEPT / f"generator-{hashlib.sha256(source).hexdigest()[:16]}"
    if made.exists():
        return made
    KEPT.mkdir(parents=True, exist_ok=True)
    # A rename replaces the program in one step, so that a benchmark that starts meanwhile never runs half of it.
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        out = Path(scratch, made.name)
        command = [str(compiler()), "-O2", "-std=gnu11", "-o", str(out), str(SOURCE)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S_MAX, check=False)
        if ran.returncode:
            raise SystemExit(f"{command[0]} cannot compile {SOURCE.name}: {ran.stderr.strip()[-1000:]}")
        out.rename(made)
    return made


def run(
    opened: Sequence[Opened], message: Message, count: int, *, in_flight: int = 1, rate: float = 0.0, silence_s: float = SILENCE_S
) -> Load:
    """Send `count` records over open connections, and wait for their receipts.

    Args:
        opened: the connections. After the run, the caller does not know their next sequences, so it cannot use them again.
        message: the message of each record.
        count: number of records over all connections.
        in_flight: maximum number of records in flight on each connection.
        rate: records a second over all connections; 0: each receipt sends the next record.
        silence_s: the run fails after this time without a receipt, s.

    Raises:
        SystemExit: an answer is not the expected receipt, a connection ended, or no receipt arrived in time.
    """
    interval_ns = round(1e9 / rate) if rate else 0
    sizes = len(opened), in_flight, len(message.data), message.answer_bytes
    fields = message.producer_at, message.sequence_at, message.epoch_at
    described = [_PLAN.pack(count, interval_ns, *sizes, *fields, round(1000 * silence_s))]
    described += [_OPENED.pack(one.producer, one.sequence, one.epoch, one.fileno()) for one in opened]
    described.append(message.data)
    descriptors = [one.fileno() for one in opened]
    try:
        ran = subprocess.run(
            [program()],
            input=b"".join(described),
            capture_output=True,
            pass_fds=descriptors,
            timeout=_RUN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the load generator did not finish {count:,} records within {_RUN_S_MAX:.0f} s") from None
    if ran.returncode or len(ran.stdout) != _RESULT.size + 8 * count:
        said = ran.stderr.decode(errors="replace").strip()
        raise SystemExit(said or f"the load generator ended with code {ran.returncode} after {len(ran.stdout)} bytes of results")
    elapsed_ns, cpu_ns = _RESULT.unpack_from(ran.stdout)
    times = np.sort(np.frombuffer(ran.stdout, np.uint64, count, _RESULT.size)) / 1e6
    return Load(count, elapsed_ns / 1e9, cpu_ns / 1e9, times)
