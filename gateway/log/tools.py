"""What a person does with a data directory: check it, list it, sum it up, mend it."""

from __future__ import annotations

from gateway.log.digest import Digest, digest
from gateway.log.inspect import FrameInfo, inspect
from gateway.log.repair import Repair, repair
from gateway.log.verify import Finding, Verified, verify

__all__ = ["Digest", "Finding", "FrameInfo", "Repair", "Verified", "digest", "inspect", "repair", "verify"]
