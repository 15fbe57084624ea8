"""Registration of fork handlers. Systems without fork have none to run, so the client can be imported there, too."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Call `renew` in each forked child, before other code of the client runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
