"""Damaged lanes that starts have set aside: the newest few stay, for somebody who looks for something in them."""

from __future__ import annotations

import os
import shutil

from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import LANES, lane_path
from tutti.log.files.storage import Storage
from tutti.runtime.reserved_fds import patiently
from tutti_gateway.core import limits

_ASIDE = ".damaged-"


class LanesAside:
    """Sets lanes aside, for one start: it removes none that it has set aside itself, however many they are, as what is not good of
    them was not learned again yet.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        """Of a gateway's directory."""
        self._directory = directory
        self._storage = storage
        self._fresh: set[str] = set()

    def take(self, lane: LaneName) -> tuple[str, list[str]]:
        """Give a lane's directory another name, durably, and before that remove the oldest of too many.

        Returns where the lane is now, and what was removed or could not be, a sentence each, for the operator.

        Raises:
            OSError: there is no room for the name, or the disk failed.
        """
        path = lane_path(self._directory, lane)
        names = patiently(lambda: os.listdir(os.path.dirname(path)))
        number = 1 + max(map(_number, names))  # of all names: one that is no directory is in use too
        there = lanes_aside(self._directory)
        many = max(0, len(there) + 1 - limits.LANES_DAMAGED_KEPT_MAX)
        told = [_removed(one) for one in there[:many] if one not in self._fresh]
        aside = f"{path}{_ASIDE}{number}"
        self._storage.rename(path, aside)
        self._storage.make_names_durable(os.path.dirname(path))
        self._fresh.add(aside)
        return aside, told


def lanes_aside(directory: str) -> list[str]:
    """Paths of the lanes set aside in a gateway's directory, the oldest first: numbers rise over all of them. (Earlier releases
    counted each lane by itself: of those with the same number the time decides.)
    """
    folder = os.path.join(directory, LANES)
    with patiently(lambda: os.scandir(folder)) as entries:
        found = [
            (_number(one.name), one.stat(follow_symlinks=False).st_ctime_ns, one.path)
            for one in entries
            if _number(one.name) and one.is_dir(follow_symlinks=False)
        ]
    return [path for *_, path in sorted(found)]


def _number(name: str) -> int:
    """The N of the name `NUMBER-INCARNATION.damaged-N`; 0 of what is called otherwise, which is not touched."""
    lane, _, number = name.partition(_ASIDE)
    return int(number) if number.isascii() and number.isdecimal() and LaneName.parse(lane) is not None else 0


def _removed(path: str) -> str:
    """Remove one; what became of it. Interrupted, the next removal goes on with it, as what is left keeps its number. What cannot
    be removed keeps no gateway from starting.
    """
    try:
        shutil.rmtree(path)
    except OSError as error:
        return f"{path}, a damaged lane that was set aside by an earlier start, cannot be removed ({error}); remove it"
    return (
        f"{path}, a damaged lane that was set aside by an earlier start, was removed: "
        f"the newest {limits.LANES_DAMAGED_KEPT_MAX} are kept"
    )
