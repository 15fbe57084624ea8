"""What of the directory is to be taken, by what the ledger knows of it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tutti_connect.files import limits
from tutti_connect.files.discovery.directory import is_opaque
from tutti_connect.files.discovery.fingerprint import mark_of
from tutti_connect.files.discovery.ledger import File, Ledger, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tutti_connect.files.config import Inflow
    from tutti_connect.files.discovery.directory import Seen

LOG = logging.getLogger("tutti.files")


class Candidate(NamedTuple):
    """A file to look into, and what the ledger has of it, if anything."""

    seen: Seen
    file: File | None


class Known:
    """Compares what is seen with the ledger: complete files by their names, and renamed and growing ones by their inodes."""

    def __init__(self, config: Inflow, ledger: Ledger) -> None:
        """Of one session; the ledger was taken over."""
        self._root = Path(config.files.directory)
        self._form = config.files.format
        self._grows = config.files.grows
        self._quiet_ns = config.files.quiet_ms * 1_000_000
        self._ledger = ledger
        self._watched: dict[str, tuple[int, int, int]] = {}  # name -> size, time of change, since when (monotonic) it is that
        self.looked: dict[int, tuple[int, int]] = {}  # growing file -> size and time of change when it was read to its end
        self.renamed: list[File] = []  # complete files that got another name since the look before
        self._put_off: set[int] = set()  # new growing files whose names were others' at the look before

    def candidates(self, found: list[Seen]) -> list[Candidate]:
        """What is to be looked into, in order."""
        chosen = self._growing(found) if self._grows else self._complete(found)
        self._bound(found)
        return chosen

    def _complete(self, found: list[Seen]) -> list[Candidate]:
        by_name = {file.name: file for file in self._ledger.files.values() if file.state is not State.AWAY}
        self._rename(found, by_name)
        watched, self._watched = self._watched, {}
        now_ns = time.time_ns()
        chosen = []
        for seen in found:
            if not seen.wanted:
                continue
            file = by_name.pop(seen.name, None)
            if (
                file is not None
                and _identity(file) == _identity(seen)
                and file.state in (State.TAKEN, State.REFUSED, State.CHANGED)
            ):
                continue
            if now_ns - seen.changed_ns >= self._quiet_ns or self._is_quiet(seen, watched):
                chosen.append(Candidate(seen, file))
        self._gone(file for file in by_name.values() if file.state is State.OPEN)
        return chosen

    def _rename(self, found: list[Seen], by_name: dict[str, File]) -> None:
        """Give files of the ledger the names that they have now: a file that is renamed is no new one."""
        self.renamed = []
        new = [
            seen for seen in found if seen.wanted and (seen.name not in by_name or _identity(by_name[seen.name]) != _identity(seen))
        ]
        if not new:
            return
        there = {seen.name: _identity(seen) for seen in found}
        left = {_identity(file): file for file in by_name.values() if there.get(file.name) != _identity(file)}
        for seen in new:
            file = left.get(_identity(seen))
            if file is None or not self._holds(seen, file):
                continue
            LOG.warning("%s is called %s now: what was taken of it is not taken again", file.name, seen.name)
            del left[_identity(seen)]
            if by_name.get(file.name) is file:
                del by_name[file.name]
            if (before := by_name.get(seen.name)) is not None:  # it was renamed over that one
                self._gone([before] if before.state is State.OPEN else [])
                left.pop(_identity(before), None)
                self._ledger.forget(before)
            by_name[seen.name] = file
            file.name = seen.name
            self._ledger.put(file)
            self.renamed.append(file)

    def _holds(self, seen: Seen, file: File) -> bool:
        """Whether it has what was taken: systems give the inodes of files that are gone to new ones."""
        try:
            descriptor = os.open(self._root / seen.name, os.O_RDONLY)
        except OSError:
            return False
        try:
            at = seen.size if file.done and is_opaque(seen.name, self._form) else file.done
            return mark_of(descriptor, at) == file.mark
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _is_quiet(self, seen: Seen, watched: dict[str, tuple[int, int, int]]) -> bool:
        """Whether it was the same for long enough by this process's own clock: that of the files may be another one."""
        now_ns = time.monotonic_ns()
        size, changed_ns, since_ns = watched.get(seen.name, (-1, -1, now_ns))
        if (size, changed_ns) != (seen.size, seen.changed_ns):
            since_ns = now_ns
        self._watched[seen.name] = (seen.size, seen.changed_ns, since_ns)
        return now_ns - since_ns >= self._quiet_ns

    def _growing(self, found: list[Seen]) -> list[Candidate]:
        by_inode = {file.inode: file for file in self._ledger.files.values()}
        there = {seen.inode for seen in found}
        left = {file.name: file for file in self._ledger.files.values() if file.inode not in there}
        taken: set[int] = set()
        chosen: list[Candidate] = []
        new: list[Candidate] = []
        put_off, self._put_off = self._put_off, set()
        for seen in found:
            if seen.inode in taken:
                continue  # another name of the same file
            file = by_inode.get(seen.inode)
            if file is None:
                before = left.get(seen.name)
                if not seen.wanted:
                    continue
                if before is not None and before.state is State.OPEN and seen.inode not in put_off:
                    # The one before it may have got another name while names were listed: the end of that comes first.
                    self._put_off.add(seen.inode)
                    del left[seen.name]
                    continue
                # One that was written anew under the name of one that is gone may go on where that was.
                new.append(Candidate(seen, left.pop(seen.name, None)))
                taken.add(seen.inode)
                continue
            taken.add(seen.inode)
            if file.name != seen.name:
                LOG.info("%s is called %s now: it goes on where it was", file.name, seen.name)
                file.name = seen.name
                self._ledger.put(file)
            if self.looked.get(file.id) != (seen.size, seen.changed_ns):
                chosen.append(Candidate(seen, file))
        self._gone(file for file in left.values() if file.state is State.OPEN)
        # What is known for longer comes first, so that a log that was rotated ends before the one with its name begins.
        chosen.sort(key=lambda one: one.file.id if one.file is not None else 0)
        new.sort(key=lambda one: (one.seen.changed_ns, one.seen.name.encode()))
        return chosen + new

    def _gone(self, files: Iterable[File]) -> None:
        """Tell once of files that went before all of them was taken."""
        for file in files:
            if file.done < file.size or not self._grows:
                LOG.warning("%s is gone, and was in the log up to row %d: what came behind it was not taken", file.name, file.row)
            file.state = State.GONE
            self._ledger.put(file)

    def _bound(self, found: list[Seen]) -> None:
        """Let the ledger forget those that are gone for longest, as far as it has to."""
        more = len(self._ledger.files) - limits.FILES_MAX
        if more <= 0:
            return
        names = {seen.name for seen in found}
        gone = [file for _, file in sorted(self._ledger.files.items()) if file.name not in names]
        for file in gone[:more]:
            self._ledger.forget(file)


def _identity(one: File | Seen) -> tuple[int, int, int]:
    return one.inode, one.size, one.changed_ns
