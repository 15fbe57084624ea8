"""Disposal of files that are completely in the log, as `files.after` says: keep, move or delete."""

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
    """Keeps, moves or deletes files that are completely in the log; completes disposals that a crash has interrupted.

    The disposal of a file has two steps. The first step renames the file to a reserved name. The second step deletes or moves the
    file, after the rename is durable in the directory and in the ledger. If a file is missing or changed before the first step,
    another process uses it, and the connector leaves it alone.
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
        """Queue a file whose modification time changed after it was copied, but whose compared parts did not change."""
        if self._action == "delete" and not file.bad:
            # Do not delete a touched file: only its start and end were compared, and a deletion is final.
            self._log_once(file, "%s was written to, or touched, after it was copied: it is not deleted")
            file.state = State.CHANGED
            self._ledger.put(file)
        self.add(file)

    def carry_out(self) -> None:
        """Move or delete the queued files. The ledger on disk must already have the state COPIED for these files.

        Raises:
            Fenced: a newer instance has taken over the ledger.
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
        # `_run_step` syncs the directories first: otherwise, after a power failure, a deleted file could be back without its entry.
        for file in self._run_step([one for one in queued if one.state is State.DISPOSING], self._dispose):
            self._release(file)

    def _run_step(self, files: Iterable[File], step: Callable[[File], set[Path]]) -> list[File]:
        """Run a step for each file, sync the changed directories, and return the files for which the step succeeded.

        After a failed step, log the error; the next disposal repeats the step.
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
        if not _is_unchanged(file, reserved):  # an earlier run may have been killed between the rename and its record in the ledger
            if not reserved.exists():
                if not _is_unchanged(file, path):
                    del self._queued[file.id]
                    return set()
                if self._action == "move":
                    self._target_directory(file)  # raises an error before the rename if `done` is not writable
                path.rename(reserved)
            if not _is_unchanged(file, reserved):
                del self._queued[file.id]
                _restore(reserved, path)
                return set()
        return {reserved.parent}

    def _dispose(self, file: File) -> set[Path]:
        """Delete or move a file that has its reserved name. A missing file was deleted or moved by an earlier run."""
        reserved = self._reserved_path(file)
        if not reserved.exists():
            # this session has tried and failed to dispose of the file, so another process has removed it
            if file.id in self._logged:
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
        """Remove the file from the queue and from the ledger, because its disposal is complete."""
        del self._queued[file.id]
        self._ledger.remove(file)

    def _reserved_path(self, file: File) -> Path:
        """Return the path with the reserved name of a file; the ledger's id in the name makes it unique among ledgers."""
        return (self._root / file.name).with_name(f"{RESERVED_PREFIX}{self._ledger.id}-{file.id}")

    def _target_directory(self, file: File) -> Path:
        """Create and return the directory that receives the file."""
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
        os.link(reserved, path)  # a link fails if a new file has the name by now; a rename would replace that file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        LOG.warning(
            "%s was replaced during its disposal, and the replacement is now %s: rename it back (%s)", path, reserved, reason
        )
    else:
        reserved.unlink()


def _moved(reserved: Path, wanted: Path, number: int) -> Path:
    """Move a file to the first free name, NAME, NAME.NUMBER, NAME.NUMBER.1 and so on, and return the directory.

    An empty file reserves the name first, because a rename would replace an existing file. A hard link would not replace a file,
    but the kernel may deny links to files of another owner.
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
