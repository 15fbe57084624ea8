"""What becomes of files that are in the log: they stay, are moved or deleted, none before the log has all of it."""

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


class After:
    """Carries out `files.after`. What it did not come to, because it was killed, it does when it is started again.

    A file goes in two steps: it gets another name (aside), and only when that is on the disk, in the ledger too, it is deleted or
    moved. So one that is not there, or is another one, and was not aside, was changed by others: its name is not free.
    """

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
        if file.state is State.AWAY and self._what == "keep":
            self._tell(file, "%s stands aside, as %s, since files.after was another one: it stays there", self._aside(file))
        if self._what == "keep" or file.state not in (State.TAKEN, State.AWAY):
            return
        if self._what == "delete" and file.bad:
            self._tell(file, "%s is not deleted: %d rows of it are in quarantine", file.bad)
            return
        self._waiting[file.id] = file

    def touched(self, file: File) -> None:
        """A file that was taken was written to or touched, and is the same as far as can be told."""
        if self._what == "delete" and not file.bad:
            # Not all of it was compared, and nothing brings it back.
            self._tell(file, "%s was written to, or touched, since it was taken: it is not deleted")
            file.state = State.CHANGED
            self._ledger.put(file)
        self.add(file)

    def carry_out(self) -> None:
        """Move or delete what waits; that all of it is in the log is on the disk, in the ledger too.

        Raises:
            Fenced: a newer instance has the ledger.
            Unavailable: the ledger's disk takes nothing.
            OSError: a directory cannot be synced.
        """
        if not self._waiting:
            return
        waiting = list(self._waiting.values())
        for file in self._each((one for one in waiting if one.state is State.TAKEN), self._set_aside):
            file.state = State.AWAY
            self._ledger.put(file)
        self._ledger.write()
        # Before the ledger lets go of them, too, directories are synced: a file could come back by a power failure.
        for file in self._each([one for one in waiting if one.state is State.AWAY], self._put_away):
            self._let_go(file)

    def _each(self, files: Iterable[File], step: Callable[[File], set[Path]]) -> list[File]:
        """Files for which a step changed directories, which are synced then; what fails is told, and comes again."""
        folders: set[Path] = set()
        done = []
        for file in files:
            try:
                changed = step(file)
            except OSError as error:
                where = f" (it is {self._aside(file).name} now)" if file.state is State.AWAY else ""
                reason = (error.strerror or str(error)).lower()
                self._tell(file, "%s cannot be %sd%s: %s", self._what, where, reason)
                continue
            if changed:
                folders |= changed
                done.append(file)
        for folder in folders:
            sync_directory(folder)
        return done

    def _set_aside(self, file: File) -> set[Path]:
        """Rename it, then look at it again: it may have been replaced. None changed if others removed or changed it before."""
        path, aside = self._root / file.name, self._aside(file)
        if not _is(file, aside):  # else it was killed behind this
            if not aside.exists():
                if not _is(file, path):
                    del self._waiting[file.id]
                    return set()
                if self._what == "move":
                    self._folder(file)  # where there can be none, it keeps its name
                path.rename(aside)
            if not _is(file, aside):
                del self._waiting[file.id]
                _put_back(aside, path)
                return set()
        return {aside.parent}

    def _put_away(self, file: File) -> set[Path]:
        """Delete or move one that stands aside; it was done before if it does not."""
        aside = self._aside(file)
        if not aside.exists():
            if file.id in self._told:  # not by this session, nor before it began
                LOG.warning("%s stood aside, as %s, and is gone: others took it away", file.name, aside)
            self._let_go(file)
            return set()
        if self._what == "move":
            return {aside.parent, _moved(aside, self._folder(file) / Path(file.name).name, file.id)}
        if not _is(file, aside):
            self._tell(file, "%s was written to while it was put away: it is not deleted, and is %s now", aside)
            self._let_go(file)
            return set()
        aside.unlink()
        return {aside.parent}

    def _let_go(self, file: File) -> None:
        """Its name is free."""
        del self._waiting[file.id]
        self._ledger.forget(file)

    def _aside(self, file: File) -> Path:
        """Its name meanwhile, which no other ledger gives."""
        return (self._root / file.name).with_name(f"{ASIDE}{self._ledger.id}-{file.id}")

    def _folder(self, file: File) -> Path:
        """The directory that it is moved to."""
        folder = (self._done / file.name).parent
        make_directory(folder)
        return folder

    def _tell(self, file: File, text: str, *more: object) -> None:
        if file.id not in self._told:
            LOG.warning(text, file.name, *more)
            self._told.add(file.id)


def _is(file: File, path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) == (file.inode, file.size, file.changed_ns)


def _put_back(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)  # a rename would replace what came meanwhile
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        LOG.warning("%s was replaced while it was put away, and what came is %s now: put it back (%s)", path, aside, reason)
    else:
        aside.unlink()


def _moved(aside: Path, wanted: Path, number: int) -> Path:
    """Move it under the first name that is free, NAME, NAME.NUMBER, NAME.NUMBER.1 and so on; the directory.

    The name is taken first, by an empty file: a rename replaces what is there, and a link needs more than the right to rename.
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
