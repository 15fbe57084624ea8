"""What cannot be brought across, in files: one a record, named by where it came from, so that a second time changes nothing."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from connectors import limits
from gateway.durable import make_directory, sync_directory
from gateway.errors import ConfigError, TuttiError, remedy

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class Full(TuttiError):
    """There is no room for another record in quarantine: somebody has to look at those that are there."""


class Quarantine:
    """A directory of records with the reason why each is there. One thread puts; `count` may be looked at by others."""

    def __init__(self, directory: str) -> None:
        """Make it.

        Raises:
            ConfigError: it cannot be written.
        """
        self._directory = Path(directory)
        try:
            make_directory(self._directory)
            self.count = self._counted()
            with tempfile.TemporaryFile(dir=self._directory):
                pass  # that it can be written is learned now, not with the first record
        except OSError as error:
            advice = remedy(error, "name a directory that can be written")
            raise ConfigError(f"quarantine {directory}: {error.strerror}: {advice}") from error

    def put(self, label: str, source: Sequence[str], reason: str, record: Mapping[str, Any]) -> bool:
        """Keep a record; it is on the disk when this returns. False if it was there already.

        Args:
            label: where it came from, for the eye: source and place in it, as "orders-0-17". Same label and source: same record.
            source: what tells that source from another one of the same name (ids, paths): not what changes with each start.
            reason: why it is here.
            record: all there is of it, for JSON; bytes by `as_base64`.

        Raises:
            Full: there is no room for another one.
            OSError: the disk does not take it.
        """
        digest = hashlib.sha256("\0".join((label, *source)).encode()).hexdigest()[:12]
        path = self._directory / f"{_NOT_IN_NAMES.sub('_', label)[: limits.LABEL_CHARACTERS]}-{digest}.json"
        if path.exists():
            return False
        if self.count >= limits.QUARANTINED_MAX:
            self.count = self._counted()  # somebody may have moved some away
        if self.count >= limits.QUARANTINED_MAX:
            raise Full(
                f"{label}: {self.count} records are in quarantine in {self._directory}, as many as may be: look at "
                f"the reasons there, and move the files away"
            )
        half = path.with_suffix(".part")
        with half.open("wb") as file:
            file.write(orjson.dumps({"reason": reason, **record}, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        half.rename(path)
        sync_directory(self._directory)
        self.count += 1
        return True

    def _counted(self) -> int:
        return sum(1 for _ in self._directory.glob("*.json"))


def as_base64(data: bytes | str | None) -> str | None:
    """Bytes for JSON; null stays null."""
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
