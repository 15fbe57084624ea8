"""Where records come from, gateways or directories, opened once a process.

Spark's workers live on from task to task: connections and mapped files stay open for the next one.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client.files import Files
    from gateway.client.reads import Reads

    from streaming.options import ReadOptions

_opened: dict[tuple[int, str | tuple[str, ...]], Reads | Files] = {}
_opening = threading.Lock()


def origin_of(options: ReadOptions) -> Reads | Files:
    """What `options` name, opened by this process before or now."""
    key = (os.getpid(), options.gateways if options.gateways is not None else options.paths)
    with _opening:
        origin = _opened.get(key)
        if origin is None:
            if options.gateways is not None:
                from gateway.client.reads import Reads

                origin = Reads(options.gateways)
            else:
                from gateway.client.files import Files

                origin = Files(options.paths)
            _opened[key] = origin
        return origin
