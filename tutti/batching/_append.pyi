"""Interface of the extension `_append.c`."""

from collections.abc import Callable
from typing import Any

from tutti.batching.receipt import Batch, Receipt

FORM: int
RECORD_OVERHEAD_BYTES: int

class Appender:
    def __init__(self, batch: Batch, receipt: type[Receipt], /) -> None: ...
    def __call__(self, item: Any, /) -> Receipt | None: ...
    def close(self) -> None: ...

class Send:
    def __init__(self, function: Callable[..., Any], /) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
