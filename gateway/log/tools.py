"""What a person does with a data directory: check it, list it, sum it up, mend it."""

from __future__ import annotations

from gateway.data.lanes import NEW_LANE
from gateway.log.digest import Digest, digest
from gateway.log.inspect import FrameInfo, inspect
from gateway.log.lanes_there import SUSPECT
from gateway.log.repair import Repair, repair
from gateway.log.verify import Finding, LaneVerified, Verified, lane_of, verify, verify_lanes

__all__ = [
    "NEW_LANE",
    "SUSPECT",
    "Digest",
    "Finding",
    "FrameInfo",
    "LaneVerified",
    "Repair",
    "Verified",
    "digest",
    "inspect",
    "lane_of",
    "repair",
    "verify",
    "verify_lanes",
]
