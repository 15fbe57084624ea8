"""Tutti's client library: producers and readers of a totally ordered, replicated log; see docs/how-to/clients.md.

from tutti import Producer, Reader

with Producer("tutti://127.0.0.1:7400", producer="jfk-departures") as producer:
    receipt = producer.send("flights", b"...")
    offset = receipt.result(timeout=10)

with Reader("tutti://127.0.0.1:7400", topics=["flights"], start=0) as reader:
    for batch in reader:
        ...

In coroutines, `AsyncProducer` and `AsyncReader` take their places.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tutti.errors import (
    Aborted,
    Behind,
    BufferFull,
    ConfigError,
    Damaged,
    DirectoryRefused,
    Fenced,
    FormatError,
    NotAllowed,
    OffsetOutOfRange,
    Refused,
    TooLarge,
    TuttiError,
    Unavailable,
    Unknown,
    UsageError,
    WrongDirectory,
)

if TYPE_CHECKING:
    from tutti.aio import AsyncProducer, AsyncReader
    from tutti.batching.receipt import Receipt, Resume
    from tutti.common.credentials import Credentials
    from tutti.common.stats import ProducerStats, ReaderStats
    from tutti.producer import Producer
    from tutti.reader import Reader, Record
    from tutti.tracing import TracedProducer

__all__ = [
    "Aborted",
    "AsyncProducer",
    "AsyncReader",
    "Behind",
    "BufferFull",
    "ConfigError",
    "Credentials",
    "Damaged",
    "DirectoryRefused",
    "Fenced",
    "FormatError",
    "NotAllowed",
    "OffsetOutOfRange",
    "Producer",
    "ProducerStats",
    "Reader",
    "ReaderStats",
    "Receipt",
    "Record",
    "Refused",
    "Resume",
    "TooLarge",
    "TracedProducer",
    "TuttiError",
    "Unavailable",
    "Unknown",
    "UsageError",
    "WrongDirectory",
]

# Each module is imported at its first use, so that a program with only a `Reader` does not load the producer.
_MODULES = {
    "AsyncProducer": "tutti.aio",
    "AsyncReader": "tutti.aio",
    "Credentials": "tutti.common.credentials",
    "Producer": "tutti.producer",
    "ProducerStats": "tutti.common.stats",
    "Reader": "tutti.reader",
    "ReaderStats": "tutti.common.stats",
    "Receipt": "tutti.batching.receipt",
    "Record": "tutti.reader",
    "Resume": "tutti.batching.receipt",
    "TracedProducer": "tutti.tracing",
}


def __getattr__(name: str) -> object:
    """Import a name of `__all__` from its module."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__


# Tracebacks then show `tutti.Aborted`, the name that applications import, instead of `tutti.errors.Aborted`.
for _name in __all__:
    _kind = globals().get(_name)
    if isinstance(_kind, type) and issubclass(_kind, TuttiError):
        _kind.__module__ = __name__
