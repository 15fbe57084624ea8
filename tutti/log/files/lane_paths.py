"""Paths of lanes within a gateway's data directory."""

from __future__ import annotations

import os

from tutti.data.lane_name import LaneName
from tutti.log.files.layout import list_positions
from tutti.log.files.storage import read_file
from tutti.runtime.reserved_fds import with_descriptor_wait

LANES = "lanes"
OWN = "lane"  # file in a gateway's directory that contains the name of its own lane, written before the lane's first write
SUSPECT = "suspect"  # file in a lane's directory that exists after a failed read, until a scrub has read the whole lane


def lane_path(directory: str, lane: LaneName) -> str:
    """Return the directory of a lane."""
    return os.path.join(directory, LANES, lane.text)


def list_lanes(directory: str) -> list[LaneName]:
    """Return the lanes in a gateway's directory, sorted by number. A directory of an earlier release may have no lanes."""
    try:
        names = with_descriptor_wait(lambda: os.listdir(os.path.join(directory, LANES)))
    except FileNotFoundError:
        return []
    return sorted(lane for name in names if (lane := LaneName.parse(name)) is not None)


def recorded_own_lane(directory: str) -> LaneName | None:
    """Return the gateway's own lane according to the file `lane`, or None if the directory has no such file.

    The directory of the returned lane may be missing.
    """
    try:
        return LaneName.parse(read_file(os.path.join(directory, OWN)).decode("ascii", "replace").strip())
    except FileNotFoundError:
        return None


def lane_has_log(directory: str, lane: LaneName) -> bool:
    """True if the lane's directory contains a log. While a lane is being created, its directory has no log yet."""
    return bool(list_positions(lane_path(directory, lane), "seg"))


def lane_of_path(path: str) -> tuple[str, LaneName] | None:
    """Split the path of a lane's directory into the gateway's directory and the lane. For any other path, return None."""
    lanes, name = os.path.split(os.path.abspath(path))
    directory, folder = os.path.split(lanes)
    lane = LaneName.parse(name)
    return (directory, lane) if lane is not None and folder == LANES else None
