"""Registration of fork handlers. On systems without fork, on which the client can also be imported, the registration does
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Register `renew`, which Python calls in each forked child before other code of the client runs."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
