"""Quarantines corrupt lanes at a start, and keeps the newest few of them for examination."""

from __future__ import annotations

import os
import shutil

from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import LANES, lane_path
from tutti.log.files.storage import Storage
from tutti.runtime.reserved_fds import with_descriptor_wait
from tutti_gateway.core import limits

_SUFFIX = ".damaged-"


class LaneQuarantine:
    """Quarantines lanes during one start. It never removes a lane that this start quarantined, because the rest of that lane is
    not fetched yet.
    """

    def __init__(self, directory: str, storage: Storage) -> None:
        """Create the quarantine of a gateway's directory."""
        self._directory = directory
        self._storage = storage
        self._this_start: set[str] = set()

    def take(self, lane: LaneName) -> tuple[str, list[str]]:
        """Rename a lane's directory durably, and first remove the oldest quarantined lanes above the limit.

        Returns:
            The new path, and messages about removed lanes and failed removals, for the operator.

        Raises:
            OSError: the disk is full, or it failed.
        """
        path = lane_path(self._directory, lane)
        names = with_descriptor_wait(lambda: os.listdir(os.path.dirname(path)))
        number = 1 + max(map(_number, names))  # of all names, because a plain file with such a name blocks the rename too
        there = quarantined_lanes(self._directory)
        many = max(0, len(there) + 1 - limits.LANES_QUARANTINED_MAX)
        told = [_removed(one) for one in there[:many] if one not in self._this_start]
        aside = f"{path}{_SUFFIX}{number}"
        self._storage.rename(path, aside)
        self._storage.make_names_durable(os.path.dirname(path))
        self._this_start.add(aside)
        return aside, told


def quarantined_lanes(directory: str) -> list[str]:
    """Return the paths of quarantined lanes in a gateway's directory, oldest first. Numbers rise over all lanes.

    Earlier releases counted each lane separately, so the change time orders lanes with equal numbers.
    """
    folder = os.path.join(directory, LANES)
    with with_descriptor_wait(lambda: os.scandir(folder)) as entries:
        found = [
            (_number(one.name), one.stat(follow_symlinks=False).st_ctime_ns, one.path)
            for one in entries
            if _number(one.name) and one.is_dir(follow_symlinks=False)
        ]
    return [path for *_, path in sorted(found)]


def _number(name: str) -> int:
    """Return the N of a name `NUMBER-INCARNATION.damaged-N`, or 0 for any other name."""
    lane, _, number = name.partition(_SUFFIX)
    return int(number) if number.isascii() and number.isdecimal() and LaneName.parse(lane) is not None else 0


def _removed(path: str) -> str:
    """Remove a quarantined lane, and return a message about the result.

    What an interrupted removal leaves keeps its number, so the next start removes it. A failed removal does not prevent the start.
    """
    try:
        shutil.rmtree(path)
    except OSError as error:
        return f"{path}, a corrupt lane that an earlier start quarantined, cannot be removed ({error}); remove it by hand"
    return (
        f"{path}, a corrupt lane that an earlier start quarantined, was removed: the newest {limits.LANES_QUARANTINED_MAX} are kept"
    )
