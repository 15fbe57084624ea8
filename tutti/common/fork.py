"""Registration of fork handlers. The client can also be imported on systems without fork, where no handler is needed."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Call `renew` in each forked child, before other code of the client runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
