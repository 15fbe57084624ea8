"""What becomes of files that are in the log: they stay, are moved or deleted, none before the log has all of it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.files.directory import ASIDE
from connectors.files.ledger import File, Ledger, State

if TYPE_CHECKING:
    from connectors.files.config import Inflow

LOG = logging.getLogger("tutti.files")


class After:
    """Carries out `files.after`. What it did not come to, because it was killed, it does when it is started again."""

    def __init__(self, config: Inflow, ledger: Ledger) -> None:
        """Of one session."""
        self._root = Path(config.files.directory)
        self._what = config.files.after
        self._done = Path(config.files.done)
        self._ledger = ledger
        self._waiting: dict[int, File] = {}
        self._told: set[int] = set()
        for file in ledger.files.values():
            self.add(file)

    def add(self, file: File) -> None:
        """A file may have come to its end."""
        if self._what == "keep" or file.state is not State.TAKEN:
            return
        if self._what == "delete" and file.bad:
            if file.id not in self._told:
                LOG.warning("%s is not deleted: %d rows of it are in quarantine", file.name, file.bad)
                self._told.add(file.id)
            return
        self._waiting[file.id] = file

    def carry_out(self) -> None:
        """Move or delete what waits; that all of it is in the log is on the disk, in the ledger too."""
        if not self._waiting:
            return
        folders: set[Path] = set()
        done = []
        for file in list(self._waiting.values()):
            try:
                folders |= self._one(file)
            except OSError as error:
                if file.id not in self._told:
                    LOG.warning("%s cannot be %sd: %s", file.name, self._what, (error.strerror or str(error)).lower())
                    self._told.add(file.id)
                continue
            done.append(file)
            del self._waiting[file.id]
        # Before the ledger lets go of them: a file that came back by a power failure would be a new one.
        for folder in folders:
            _sync(folder)
        for file in done:
            self._ledger.forget(file)

    def _one(self, file: File) -> set[Path]:
        """One file; the directories that were changed."""
        path = self._root / file.name
        # Aside first, then looked at again: it may have been replaced since. It is aside already where this was killed.
        aside = path.with_name(f"{ASIDE}{file.id}")
        if not _is(file, aside):
            if not _is(file, path):
                return set()  # gone, or another one by now: that is a new file
            path.rename(aside)
            if not _is(file, aside):
                _put_back(aside, path)
                return {path.parent}
        if self._what == "delete":
            aside.unlink()
            return {path.parent}
        target = self._free(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.rename(target)
        return {path.parent, target.parent}

    def _free(self, file: File) -> Path:
        """Where it goes: under its name, or with a number behind it where there is such a file."""
        target = self._done / file.name
        return target if not target.exists() else target.with_name(f"{target.name}.{file.id}")


def _is(file: File, path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) == (file.inode, file.size, file.changed_ns)


def _put_back(aside: Path, path: Path) -> None:
    if path.exists():
        LOG.warning("%s was replaced twice while it was put away: the first of them is %s", path, aside)
    else:
        aside.rename(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
