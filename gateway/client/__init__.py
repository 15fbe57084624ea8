"""What applications use: producers and readers of a group of gateways.

What is named here is imported when it is first asked for, so that who needs a small room of this package (as `url`) gets no more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client.credentials import Credentials
    from gateway.client.producer import Producer
    from gateway.client.reader import Reader, Record
    from gateway.client.receipt import Receipt, Resume
    from gateway.client.tracing import TracedProducer

_HOMES = {
    "Credentials": "gateway.client.credentials",
    "Producer": "gateway.client.producer",
    "Reader": "gateway.client.reader",
    "Record": "gateway.client.reader",
    "Receipt": "gateway.client.receipt",
    "Resume": "gateway.client.receipt",
    "TracedProducer": "gateway.client.tracing",
}

__all__ = ["Credentials", "Producer", "Reader", "Receipt", "Record", "Resume", "TracedProducer"]


def __getattr__(name: str) -> object:
    """What is named in `__all__`, from its own room."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
