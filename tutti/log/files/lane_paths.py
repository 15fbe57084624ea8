"""Paths of lanes within a gateway's data directory."""

from __future__ import annotations

import os

from tutti.data.lane_name import LaneName
from tutti.log.files.layout import list_positions
from tutti.log.files.storage import read_file
from tutti.runtime.reserved_fds import with_descriptor_wait

LANES = "lanes"
OWN = "lane"  # file in a gateway's directory with the name of the gateway's own lane; it exists before the lane's first write
SUSPECT = "suspect"  # file in a lane's directory; it exists from a failed read of decided records until a scrub of the whole lane


def lane_path(directory: str, lane: LaneName) -> str:
    """Return the directory of a lane."""
    return os.path.join(directory, LANES, lane.text)


def list_lanes(directory: str) -> list[LaneName]:
    """Return the lanes in a gateway's directory, sorted by number; none if an earlier release without lanes wrote it."""
    try:
        names = with_descriptor_wait(lambda: os.listdir(os.path.join(directory, LANES)))
    except FileNotFoundError:
        return []
    return sorted(lane for name in names if (lane := LaneName.parse(name)) is not None)


def recorded_own_lane(directory: str) -> LaneName | None:
    """Return the lane that the file `lane` names as the gateway's own, even if its directory is gone, or None without that file."""
    try:
        return LaneName.parse(read_file(os.path.join(directory, OWN)).decode("ascii", "replace").strip())
    except FileNotFoundError:
        return None


def lane_has_log(directory: str, lane: LaneName) -> bool:
    """True if the lane holds a log. The directory of a lane that is still being created has no log."""
    return bool(list_positions(lane_path(directory, lane), "seg"))


def lane_of_path(path: str) -> tuple[str, LaneName] | None:
    """Return the gateway's directory and the lane to which a path leads, or None if it is not the path of a lane's directory."""
    lanes, name = os.path.split(os.path.abspath(path))
    directory, folder = os.path.split(lanes)
    lane = LaneName.parse(name)
    return (directory, lane) if lane is not None and folder == LANES else None
