"""Where the lanes of a gateway's directory are."""

from __future__ import annotations

import os

from tutti.data.lane_name import LaneName
from tutti.log.files.layout import positions_named
from tutti.log.files.storage import read_file
from tutti.runtime.reserved_fds import patiently

LANES = "lanes"
OWN = "lane"  # in a gateway's directory: which lane is its own, from before the first write to it
SUSPECT = "suspect"  # in a lane's directory: somebody could not read what is decided in it: all of it is looked at


def lane_path(directory: str, lane: LaneName) -> str:
    """The directory of a lane."""
    return os.path.join(directory, LANES, lane.text)


def lanes_there(directory: str) -> list[LaneName]:
    """The lanes in a gateway's directory, by number; none in a directory of a release that had none."""
    try:
        names = patiently(lambda: os.listdir(os.path.join(directory, LANES)))
    except FileNotFoundError:
        return []
    return sorted(lane for name in names if (lane := LaneName.parse(name)) is not None)


def noted_lane(directory: str) -> LaneName | None:
    """The lane that began as the gateway's own one, whether it is there or not; None if none did."""
    try:
        return LaneName.parse(read_file(os.path.join(directory, OWN)).decode("ascii", "replace").strip())
    except FileNotFoundError:
        return None


def is_begun(directory: str, lane: LaneName) -> bool:
    """Whether something was written to a lane: one whose directory holds no log is being made."""
    return bool(positions_named(lane_path(directory, lane), "seg"))


def lane_at(path: str) -> tuple[str, LaneName] | None:
    """The gateway's directory and the lane, if the path is that of a lane's directory."""
    lanes, name = os.path.split(os.path.abspath(path))
    directory, folder = os.path.split(lanes)
    lane = LaneName.parse(name)
    return (directory, lane) if lane is not None and folder == LANES else None
