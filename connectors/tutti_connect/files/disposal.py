"""Disposal of files that are completely in the log: keep, move or delete."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.runtime.fsync import make_directory, sync_directory
from tutti_connect.files.discovery.directory import ASIDE
from tutti_connect.files.discovery.ledger import File, Ledger, State

if TYPE_CHECKING:
    from tutti_connect.files.config import Inflow

LOG = logging.getLogger("tutti.files")


class Disposal:
    """Carries out `files.after`. A restarted connector completes interrupted disposals.

    A file is disposed of in two steps. It is first renamed to a reserved name; after this is durable, in the directory and the
    ledger, it is deleted or moved. A file that is missing or differs before the first step was changed by others.
    """

    def __init__(self, config: Inflow, ledger: Ledger) -> None:
        """Prepare the disposals of one session."""
        self._root = Path(config.files.directory)
        self._what = config.files.after
        self._done = Path(config.files.done)
        self._ledger = ledger
        self._waiting: dict[int, File] = {}
        self._logged: set[int] = set()
        for file in ledger.files.values():
            self.add(file)

    def add(self, file: File) -> None:
        """Queue a file for disposal if it is completely in the log."""
        if file.state is State.AWAY and self._what == "keep":
            self._log_once(file, "%s was renamed to %s under an earlier setting of files.after: it stays there", self._aside(file))
        if self._what == "keep" or file.state not in (State.TAKEN, State.AWAY):
            return
        if self._what == "delete" and file.bad:
            self._log_once(file, "%s is not deleted: %d rows of it are in quarantine", file.bad)
            return
        self._waiting[file.id] = file

    def touched(self, file: File) -> None:
        """Handle a file that was touched after it was copied, and whose compared parts are unchanged."""
        if self._what == "delete" and not file.bad:
            # Only parts of the file were compared, and a deletion is final.
            self._log_once(file, "%s was written to, or touched, after it was copied: it is not deleted")
            file.state = State.CHANGED
            self._ledger.put(file)
        self.add(file)

    def carry_out(self) -> None:
        """Move or delete the queued files; their complete copy is durable, in the ledger too.

        Raises:
            Fenced: a newer instance has the ledger.
            Unavailable: the ledger's disk write failed.
            OSError: a directory sync failed.
        """
        if not self._waiting:
            return
        waiting = list(self._waiting.values())
        for file in self._each((one for one in waiting if one.state is State.TAKEN), self._reserve):
            file.state = State.AWAY
            self._ledger.put(file)
        self._ledger.write()
        # Sync the directories before the ledger deletes its entries: a power failure could restore a file.
        for file in self._each([one for one in waiting if one.state is State.AWAY], self._dispose):
            self._release(file)

    def _each(self, files: Iterable[File], step: Callable[[File], set[Path]]) -> list[File]:
        """Run a step for each file, sync the changed directories, and return the changed files.

        A failed step is logged, and retried at the next disposal.
        """
        folders: set[Path] = set()
        done = []
        for file in files:
            try:
                changed = step(file)
            except OSError as error:
                where = f" (it is {self._aside(file).name} now)" if file.state is State.AWAY else ""
                reason = (error.strerror or str(error)).lower()
                self._log_once(file, "%s cannot be %sd%s: %s", self._what, where, reason)
                continue
            if changed:
                folders |= changed
                done.append(file)
        for folder in folders:
            sync_directory(folder)
        return done

    def _reserve(self, file: File) -> set[Path]:
        """Rename a file to its reserved name, and return the changed directory.

        Check the file again after the rename, because others may have replaced it.
        """
        path, aside = self._root / file.name, self._aside(file)
        if not _is(file, aside):  # otherwise an earlier run was killed after this step
            if not aside.exists():
                if not _is(file, path):
                    del self._waiting[file.id]
                    return set()
                if self._what == "move":
                    self._folder(file)  # without a target directory, the file keeps its name
                path.rename(aside)
            if not _is(file, aside):
                del self._waiting[file.id]
                _restore(aside, path)
                return set()
        return {aside.parent}

    def _dispose(self, file: File) -> set[Path]:
        """Delete or move a renamed file; if it is missing, an earlier run did so."""
        aside = self._aside(file)
        if not aside.exists():
            if file.id in self._logged:  # missing although no session disposed of it
                LOG.warning("%s was renamed to %s, and is gone: others removed it", file.name, aside)
            self._release(file)
            return set()
        if self._what == "move":
            return {aside.parent, _moved(aside, self._folder(file) / Path(file.name).name, file.id)}
        if not _is(file, aside):
            self._log_once(file, "%s was written to during its disposal: it is not deleted, and is now %s", aside)
            self._release(file)
            return set()
        aside.unlink()
        return {aside.parent}

    def _release(self, file: File) -> None:
        """Release the file: its name is free."""
        del self._waiting[file.id]
        self._ledger.forget(file)

    def _aside(self, file: File) -> Path:
        """Return the reserved name of a file, which is unique among ledgers."""
        return (self._root / file.name).with_name(f"{ASIDE}{self._ledger.id}-{file.id}")

    def _folder(self, file: File) -> Path:
        """Return the directory that the file is moved to."""
        folder = (self._done / file.name).parent
        make_directory(folder)
        return folder

    def _log_once(self, file: File, text: str, *more: object) -> None:
        if file.id not in self._logged:
            LOG.warning(text, file.name, *more)
            self._logged.add(file.id)


def _is(file: File, path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) == (file.inode, file.size, file.changed_ns)


def _restore(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)  # a rename would replace a file that appeared meanwhile
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        LOG.warning("%s was replaced during its disposal, and the replacement is now %s: rename it back (%s)", path, aside, reason)
    else:
        aside.unlink()


def _moved(aside: Path, wanted: Path, number: int) -> Path:
    """Move a file to the first free name, NAME, NAME.NUMBER, NAME.NUMBER.1 and so on, and return the directory.

    An empty file reserves the name first: a rename would replace an existing file, and a link needs more permissions than a rename.
    """
    numbered = f"{wanted.name}.{number}"
    for name in itertools.chain([wanted.name, numbered], (f"{numbered}.{more}" for more in itertools.count(1))):
        target = wanted.with_name(name)
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        try:
            aside.rename(target)
        except OSError:
            target.unlink()
            raise
        break
    return wanted.parent
