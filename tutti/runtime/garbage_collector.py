"""Settings of Python's garbage collector for processes that handle many messages."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def relaxed_gc() -> Iterator[None]:
    """Reduce the work of the garbage collector: freeze the loaded objects and raise the thresholds.

    Reference counting frees messages without the collector. With default thresholds, a full collection of 25 to 60 ms would follow
    every few thousand messages.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
