"""Appender of an open batch: the fast path of `send()`, without a lock, for one thread at a time.

The C extension `_append.c` implements the same appender and takes a third of the time. Installation builds the extension if a C
compiler is available. `TUTTI_SWIFT=0` in the environment disables the extension.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Protocol, TypeVar

from tutti.batching.encoder import RECORD_OVERHEAD_BYTES
from tutti.batching.receipt import Batch, Receipt

_clock = time.time
_FORM = 3  # version of the interface between the extension and this package

Append = Callable[[Any], Receipt | None]
Method = TypeVar("Method", bound=Callable[..., Any])


class Appender(Protocol):
    """Appends records to a batch until the batch is closed."""

    def close(self) -> None:
        """Stop appending. Afterwards, the caller has exclusive access to the batch.

        Raises:
            ValueError: another thread is appending.
        """


def _load_extension() -> ModuleType | None:
    """Return the extension if it is installed, has the right version, and is not disabled."""
    if os.environ.get("TUTTI_SWIFT") == "0":
        return None
    try:
        from tutti.batching import _append  # noqa: PLC0415 - the extension may be missing, or disabled by the environment
    except ImportError:
        return None
    return _append if _append.FORM == _FORM else None


compiled = _load_extension()


def open_appender(batch: Batch) -> tuple[Appender, Append]:
    """Return an appender for the batch, and the callable that appends one item (see `generator`)."""
    if compiled is not None:
        # One object of the C extension is both the appender and the callable.
        made = compiled.Appender(batch, Receipt)
        return made, made
    running = generator(batch)
    next(running)
    return running, running.send


def with_fast_path(send: Method) -> Method:
    """Return the method `send` of a producer, with a fast path in C if the extension is available."""
    if compiled is None:
        return send
    method: Any = functools.update_wrapper(compiled.Send(send), send)
    return method  # type: ignore[no-any-return]  # the wrapper has the signature of `send`


def generator(batch: Batch) -> Generator[Receipt | None, Any, None]:
    """Append records without progress, timestamp and headers. Each `send` takes a value (bytes), or (value, key, on_delivery).

    `send` returns the receipt, or None if the record needs the slow path. The generator ends when the batch has no free space. The
    thread that runs the generator has exclusive access to the batch, because two threads cannot run one generator. An exception
    during an append, such as KeyboardInterrupt, also ends the generator.
    """
    values, keys, times, free, clock = batch.values, batch.keys, batch.times, batch.free_bytes, _clock
    receipt: Receipt | None = None
    try:
        while True:
            item = yield receipt
            # Fast branch for the most frequent case: an item that is only a value, in a batch without keys.
            if item.__class__ is bytes and keys is None:
                left = free - len(item) - RECORD_OVERHEAD_BYTES
                if left < 0:
                    return
                batch.free_bytes = free = left
                receipt = Receipt(batch, len(values))
                values.append(item)
                times.append(clock())
                continue
            receipt = None
            value, key, on_delivery = (item, None, None) if item.__class__ is bytes else item
            if value.__class__ is not bytes or (key is not None and key.__class__ is not bytes):
                continue
            left = free - len(value) - RECORD_OVERHEAD_BYTES - (0 if key is None else len(key))
            if left < 0:
                return
            batch.free_bytes = free = left
            if key is not None and keys is None:
                batch.keys = keys = [None] * len(values)
            receipt = Receipt(batch, len(values))
            values.append(value)
            if keys is not None:
                keys.append(key)
            if on_delivery is not None:
                # Create the list with the first callback, because most batches have no callback.
                if batch.callbacks is None:
                    batch.callbacks = []
                batch.callbacks += (receipt, on_delivery)
            times.append(clock())
    except BaseException:
        # After an exception between two appends, the columns have different lengths.
        batch.discard_partial()
        raise
