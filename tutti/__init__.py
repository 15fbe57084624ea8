"""Tutti: atomic multicast as the front door of Spark. The public face in Python; how to use it is told in docs/how-to/clients.md.

from tutti import Producer, Reader

with Producer("tutti://127.0.0.1:7400", producer="jfk-departures") as producer:
    receipt = producer.send("flights", b"...")
    offset = receipt.result(timeout=10)

with Reader("tutti://127.0.0.1:7400", topics=["flights"], start=0) as reader:
    for batch in reader:
        ...
"""

from __future__ import annotations

from tutti.batching.receipt import Receipt, Resume
from tutti.common.credentials import Credentials
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
from tutti.producer import Producer
from tutti.reader import Reader, Record
from tutti.tracing import TracedProducer

__all__ = [
    "Aborted",
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
    "Reader",
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

# A traceback names them as who imports this module does. They are the same classes, and pickles of either name load.
for _name in __all__:
    _kind = globals()[_name]
    if issubclass(_kind, TuttiError):
        _kind.__module__ = __name__
