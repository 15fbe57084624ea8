"""Being told of a fork; on a system where nothing forks there is nothing to tell, and the client can be imported all the same."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Have `renew` called in each forked child, before anything else of the client runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
