"""What a person does with a data directory: check it, list it, sum it up, mend it."""

from __future__ import annotations

from tutti.data.lane_name import NEW_LANE
from tutti.log.files.lane_paths import SUSPECT
from tutti_gateway.log.tools.digest import Digest, digest
from tutti_gateway.log.tools.inspect import FrameInfo, inspect
from tutti_gateway.log.tools.repair import Repair, repair
from tutti_gateway.log.tools.verify import Finding, LaneVerified, Verified, lane_of, verify, verify_lanes

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
