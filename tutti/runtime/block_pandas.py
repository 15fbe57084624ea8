"""What other libraries would load into a process of this project, though nothing in it uses that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _NotThere(MetaPathFinder):
    """Says of pandas that it is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing is said of other modules."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not loaded into processes of Tutti's own", name=fullname)


def without_pandas() -> None:
    """Keep pyarrow from loading pandas where that is installed: at its first scalar, array or `to_numpy` it takes a third of a
    second, in which a gateway answers nobody, and 45 MB for good, and swallows a Ctrl-C. For a process of our own, before it uses
    pyarrow.
    """
    sys.meta_path.insert(0, _NotThere())
