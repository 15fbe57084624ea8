"""Disposal of files that are completely in the log: keep, move or delete."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.runtime.durable_files import make_directory, sync_directory
from tutti_connect.files.discovery.directory import RESERVED_PREFIX
from tutti_connect.files.discovery.ledger import File, Ledger, State

if TYPE_CHECKING:
    from tutti_connect.files.config import SourceConfig

LOG = logging.getLogger("tutti.files")


class Disposal:
    """Carries out `files.after`. A restarted connector completes interrupted disposals.

    A file is disposed of in two steps. First, the file is renamed to a reserved name. When the rename is durable in the directory
    and in the ledger, the file is deleted or moved. If a file is missing or differs before the first step, another process has
    changed it.
    """

    def __init__(self, config: SourceConfig, ledger: Ledger) -> None:
        """Prepare the disposals of one session."""
        self._root = Path(config.files.directory)
        self._action = config.files.after
        self._done = Path(config.files.done)
        self._ledger = ledger
        self._queued: dict[int, File] = {}
        self._logged: set[int] = set()
        for file in ledger.files.values():
            self.add(file)

    def add(self, file: File) -> None:
        """Queue a file for disposal if it is completely in the log."""
        if file.state is State.DISPOSING and self._action == "keep":
            self._log_once(
                file, "%s was renamed to %s under an earlier setting of files.after: it stays there", self._reserved_path(file)
            )
        if self._action == "keep" or file.state not in (State.COPIED, State.DISPOSING):
            return
        if self._action == "delete" and file.bad:
            self._log_once(file, "%s is not deleted: %d rows of it are in quarantine", file.bad)
            return
        self._queued[file.id] = file

    def add_touched(self, file: File) -> None:
        """Handle a file that was touched after it was copied. The parts of it that were compared are unchanged."""
        if self._action == "delete" and not file.bad:
            # Do not delete this file: only parts of it were compared, and a deletion is final.
            self._log_once(file, "%s was written to, or touched, after it was copied: it is not deleted")
            file.state = State.CHANGED
            self._ledger.put(file)
        self.add(file)

    def carry_out(self) -> None:
        """Move or delete the queued files. Their complete copy must be durable, also in the ledger.

        Raises:
            Fenced: a newer instance has the ledger.
            Unavailable: the ledger's disk write failed.
            OSError: a directory sync failed.
        """
        if not self._queued:
            return
        queued = list(self._queued.values())
        for file in self._run_step((one for one in queued if one.state is State.COPIED), self._reserve):
            file.state = State.DISPOSING
            self._ledger.put(file)
        self._ledger.write()
        # Sync the directories before the ledger deletes its entries, because a power failure could restore a file.
        for file in self._run_step([one for one in queued if one.state is State.DISPOSING], self._dispose):
            self._release(file)

    def _run_step(self, files: Iterable[File], step: Callable[[File], set[Path]]) -> list[File]:
        """Run a step for each file, sync the changed directories, and return the changed files.

        A failed step is logged, and retried at the next disposal.
        """
        folders: set[Path] = set()
        done = []
        for file in files:
            try:
                changed = step(file)
            except OSError as error:
                where = f" (it is {self._reserved_path(file).name} now)" if file.state is State.DISPOSING else ""
                reason = (error.strerror or str(error)).lower()
                self._log_once(file, "%s cannot be %sd%s: %s", self._action, where, reason)
                continue
            if changed:
                folders |= changed
                done.append(file)
        for folder in folders:
            sync_directory(folder)
        return done

    def _reserve(self, file: File) -> set[Path]:
        """Rename a file to its reserved name, and return the changed directory.

        Check the file again after the rename, because another process may have replaced it.
        """
        path, reserved = self._root / file.name, self._reserved_path(file)
        if not _is_unchanged(file, reserved):  # the file can be there because an earlier run was killed after this step
            if not reserved.exists():
                if not _is_unchanged(file, path):
                    del self._queued[file.id]
                    return set()
                if self._action == "move":
                    self._target_directory(file)  # without a target directory, the file keeps its name
                path.rename(reserved)
            if not _is_unchanged(file, reserved):
                del self._queued[file.id]
                _restore(reserved, path)
                return set()
        return {reserved.parent}

    def _dispose(self, file: File) -> set[Path]:
        """Delete or move a renamed file. If it is missing, an earlier run has done this."""
        reserved = self._reserved_path(file)
        if not reserved.exists():
            if file.id in self._logged:  # the file is missing although no session has disposed of it
                LOG.warning("%s was renamed to %s, and is missing: another process removed it", file.name, reserved)
            self._release(file)
            return set()
        if self._action == "move":
            return {reserved.parent, _moved(reserved, self._target_directory(file) / Path(file.name).name, file.id)}
        if not _is_unchanged(file, reserved):
            self._log_once(file, "%s was written to during its disposal: it is not deleted, and is now %s", reserved)
            self._release(file)
            return set()
        reserved.unlink()
        return {reserved.parent}

    def _release(self, file: File) -> None:
        """Release the file, because its name is free."""
        del self._queued[file.id]
        self._ledger.remove(file)

    def _reserved_path(self, file: File) -> Path:
        """Return the reserved name of a file, which is unique among ledgers."""
        return (self._root / file.name).with_name(f"{RESERVED_PREFIX}{self._ledger.id}-{file.id}")

    def _target_directory(self, file: File) -> Path:
        """Return the directory that the file is moved to."""
        folder = (self._done / file.name).parent
        make_directory(folder)
        return folder

    def _log_once(self, file: File, text: str, *more: object) -> None:
        if file.id not in self._logged:
            LOG.warning(text, file.name, *more)
            self._logged.add(file.id)


def _is_unchanged(file: File, path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) == (file.inode, file.size, file.changed_ns)


def _restore(reserved: Path, path: Path) -> None:
    try:
        os.link(reserved, path)  # unlike a link, a rename would replace a file that has appeared since
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        LOG.warning(
            "%s was replaced during its disposal, and the replacement is now %s: rename it back (%s)", path, reserved, reason
        )
    else:
        reserved.unlink()


def _moved(reserved: Path, wanted: Path, number: int) -> Path:
    """Move a file to the first free name, NAME, NAME.NUMBER, NAME.NUMBER.1 and so on, and return the directory.

    Reserve the name first with an empty file, because a rename would replace an existing file. A link would need more permissions
    than a rename.
    """
    numbered = f"{wanted.name}.{number}"
    for name in itertools.chain([wanted.name, numbered], (f"{numbered}.{more}" for more in itertools.count(1))):
        target = wanted.with_name(name)
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        try:
            reserved.rename(target)
        except OSError:
            target.unlink()
            raise
        break
    return wanted.parent
