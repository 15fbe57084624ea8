"""Import blocker: prevents libraries from importing pandas in Tutti's own processes, which never use pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _PandasBlocker(MetaPathFinder):
    """Import hook that makes pandas look uninstalled."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave all other modules to the next finder."""
        if fullname == "pandas":
            raise ModuleNotFoundError("Tutti's own processes block the import of pandas", name=fullname)


def block_pandas() -> None:
    """Prevent pyarrow from importing an installed pandas. Call this in Tutti's own processes before the first use of pyarrow.

    At its first scalar, array or `to_numpy`, pyarrow imports pandas. The import takes 45 MB of memory and a third of a second,
    during which a gateway does not answer. The import also swallows a Ctrl-C.
    """
    sys.meta_path.insert(0, _PandasBlocker())
