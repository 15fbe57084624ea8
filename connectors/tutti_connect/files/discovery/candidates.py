"""Selection of the files to read: compares the scanned directory with the ledger of known files."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tutti_connect.files import limits
from tutti_connect.files.discovery.directory import is_opaque
from tutti_connect.files.discovery.fingerprint import fingerprint
from tutti_connect.files.discovery.ledger import File, Ledger, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tutti_connect.files.config import SourceConfig
    from tutti_connect.files.discovery.directory import ScannedFile

LOG = logging.getLogger("tutti.files")


class Candidate(NamedTuple):
    """A file to open, with its ledger entry if it has one."""

    seen: ScannedFile
    file: File | None


class CandidateFinder:
    """Compares a scan with the ledger: complete files by name, renamed and growing files by inode."""

    def __init__(self, config: SourceConfig, ledger: Ledger) -> None:
        """Prepare for one session, which owns the ledger."""
        self._root = Path(config.files.directory)
        self._form = config.files.format
        self._grows = config.files.grows
        self._quiet_ns = config.files.quiet_ms * 1_000_000
        self._ledger = ledger
        # file name -> size, modification time, and monotonic time since which both are unchanged
        self._watched: dict[str, tuple[int, int, int]] = {}
        # id of a growing file -> its size and modification time when the connector last read it to its end
        self.read_to_end: dict[int, tuple[int, int]] = {}
        self.renamed: list[File] = []  # complete files that were renamed since the previous scan
        # inodes of new growing files that wait for the next scan, because another file had their name
        self._deferred: set[int] = set()

    def candidates(self, found: list[ScannedFile]) -> list[Candidate]:
        """Return the files to open, in order."""
        chosen = self._growing(found) if self._grows else self._complete(found)
        self._evict(found)
        return chosen

    def _complete(self, found: list[ScannedFile]) -> list[Candidate]:
        by_name = {file.name: file for file in self._ledger.files.values() if file.state is not State.DISPOSING}
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
                and file.state in (State.COPIED, State.UNREADABLE, State.CHANGED)
            ):
                continue
            if now_ns - seen.changed_ns >= self._quiet_ns or self._is_quiet(seen, watched):
                chosen.append(Candidate(seen, file))
        self._mark_missing(file for file in by_name.values() if file.state is State.OPEN)
        return chosen

    def _rename(self, found: list[ScannedFile], by_name: dict[str, File]) -> None:
        """Update the names of renamed files in the ledger, because a renamed file is not a new file."""
        self.renamed = []
        new = [
            seen for seen in found if seen.wanted and (seen.name not in by_name or _identity(by_name[seen.name]) != _identity(seen))
        ]
        if not new:
            return
        existing = {seen.name: _identity(seen) for seen in found}
        unmatched = {_identity(file): file for file in by_name.values() if existing.get(file.name) != _identity(file)}
        for seen in new:
            file = unmatched.get(_identity(seen))
            if file is None or not self._has_copied_content(seen, file):
                continue
            LOG.warning("%s was renamed to %s: its copied rows are not copied again", file.name, seen.name)
            del unmatched[_identity(seen)]
            if by_name.get(file.name) is file:
                del by_name[file.name]
            if (before := by_name.get(seen.name)) is not None:  # the rename replaced that file
                self._mark_missing([before] if before.state is State.OPEN else [])
                unmatched.pop(_identity(before), None)
                self._ledger.remove(before)
            by_name[seen.name] = file
            file.name = seen.name
            self._ledger.put(file)
            self.renamed.append(file)

    def _has_copied_content(self, seen: ScannedFile, file: File) -> bool:
        """True if the file has the content that was copied. An equal inode is no proof, because file systems reuse inodes."""
        try:
            descriptor = os.open(self._root / seen.name, os.O_RDONLY)
        except OSError:
            return False
        try:
            at = seen.size if file.done and is_opaque(seen.name, self._form) else file.done
            return fingerprint(descriptor, at) == file.mark
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _is_quiet(self, seen: ScannedFile, watched: dict[str, tuple[int, int, int]]) -> bool:
        """True if the file has been unchanged for `quiet_ms`, measured with this process's clock: the file system's may differ."""
        now_ns = time.monotonic_ns()
        size, changed_ns, since_ns = watched.get(seen.name, (-1, -1, now_ns))
        if (size, changed_ns) != (seen.size, seen.changed_ns):
            since_ns = now_ns
        self._watched[seen.name] = (seen.size, seen.changed_ns, since_ns)
        return now_ns - since_ns >= self._quiet_ns

    def _growing(self, found: list[ScannedFile]) -> list[Candidate]:
        by_inode = {file.inode: file for file in self._ledger.files.values()}
        existing = {seen.inode for seen in found}
        unmatched = {file.name: file for file in self._ledger.files.values() if file.inode not in existing}
        matched: set[int] = set()
        chosen: list[Candidate] = []
        new: list[Candidate] = []
        deferred, self._deferred = self._deferred, set()
        for seen in found:
            if seen.inode in matched:
                continue  # another name of the same file
            file = by_inode.get(seen.inode)
            if file is None:
                before = unmatched.get(seen.name)
                if not seen.wanted:
                    continue
                if before is not None and before.state is State.OPEN and seen.inode not in deferred:
                    # Defer the new file to the next scan: if the old file of this name was renamed, its last rows come first.
                    self._deferred.add(seen.inode)
                    del unmatched[seen.name]
                    continue
                # Pair the file with the deleted file of this name, because a rewritten file may begin with the same content.
                new.append(Candidate(seen, unmatched.pop(seen.name, None)))
                matched.add(seen.inode)
                continue
            matched.add(seen.inode)
            if file.name != seen.name:
                LOG.info("%s was renamed to %s: reading continues at its position", file.name, seen.name)
                file.name = seen.name
                self._ledger.put(file)
            if self.read_to_end.get(file.id) != (seen.size, seen.changed_ns):
                chosen.append(Candidate(seen, file))
        self._mark_missing(file for file in unmatched.values() if file.state is State.OPEN)
        # Read the files in the order of their discovery, so that a rotated log ends before its successor starts.
        chosen.sort(key=lambda one: one.file.id if one.file is not None else 0)
        new.sort(key=lambda one: (one.seen.changed_ns, one.seen.name.encode()))
        return chosen + new

    def _mark_missing(self, files: Iterable[File]) -> None:
        """Mark files as missing; log each file that disappeared before it was completely copied."""
        for file in files:
            if file.done < file.size or not self._grows:
                LOG.warning("%s is gone, and is in the log up to row %d: its later rows were not copied", file.name, file.row)
            file.state = State.MISSING
            self._ledger.put(file)

    def _evict(self, found: list[ScannedFile]) -> None:
        """Delete the oldest entries of missing files, until the ledger has at most `limits.FILES_MAX` entries."""
        excess = len(self._ledger.files) - limits.FILES_MAX
        if excess <= 0:
            return
        names = {seen.name for seen in found}
        missing = [file for _, file in sorted(self._ledger.files.items()) if file.name not in names]
        for file in missing[:excess]:
            self._ledger.remove(file)


def _identity(one: File | ScannedFile) -> tuple[int, int, int]:
    return one.inode, one.size, one.changed_ns
