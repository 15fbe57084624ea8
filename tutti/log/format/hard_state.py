"""Hard state of a member, in a file with two alternating slots (design, section 3)."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from tutti.data.frames.frame import crc32c
from tutti.data.hard_state import HardState
from tutti.errors import Damaged, WrongDirectory
from tutti.log.files.layout import FORMAT_VERSION, HARD_STATE_FILE, LOG, PAGE
from tutti.log.files.storage import Storage, read_file
from tutti.log.format.vote_mark import MARK_SIZE, MARK_SIZE_BOUND, VoteMark, read_mark

MAGIC = b"TUTC"
SLOTS = (0, PAGE)
_HEAD = struct.Struct("<4sIQQQQQ")
_CRC = struct.Struct("<I")
_CRC_AT = _HEAD.size + MARK_SIZE


class HardStateSlot(NamedTuple):
    """Content of one of the two slots of the hard-state file.

    Attributes:
        sequence: number of the write that filled the slot. The slot with the higher number is the newer one.
        hard_state: views that the member has promised, accepted and coordinated.
        mark: the newest vote mark at the time of the write.
        segment: first position of the newest segment, so that a start detects its loss; 0 before the first segment.
    """

    sequence: int
    hard_state: HardState
    mark: VoteMark
    segment: int


def encode_slot(stored: HardStateSlot) -> bytes:
    """Encode a slot as 512 bytes, the size of a disk sector, because a device writes a sector completely or not at all."""
    hard_state = stored.hard_state
    head = _HEAD.pack(
        MAGIC, FORMAT_VERSION, stored.sequence, hard_state.promised, hard_state.accepted, hard_state.coordinated, stored.segment
    )
    head += stored.mark.to_bytes()
    return (head + _CRC.pack(crc32c(head))).ljust(MARK_SIZE_BOUND, b"\0")


def decode_slot(data: bytes, path: str) -> HardStateSlot | None:
    """Decode the slot at the start of `data`. Return None if the slot is invalid.

    Raises:
        WrongDirectory: the slot is valid, but has a format version that this release does not support.
    """
    if len(data) < _CRC_AT + _CRC.size or data[:4] != MAGIC or _CRC.unpack_from(data, _CRC_AT)[0] != crc32c(data[:_CRC_AT]):
        return None
    _, version, sequence, promised, accepted, coordinated, segment = _HEAD.unpack_from(data)
    if version != FORMAT_VERSION:
        raise WrongDirectory(
            f"{path} has format {version}, but this release supports format {FORMAT_VERSION}: use the release that wrote it"
        )
    mark = read_mark(data[_HEAD.size : _CRC_AT])
    return None if mark is None else HardStateSlot(sequence, HardState(promised, accepted, coordinated), mark, segment)


def read_hard_state(directory: str) -> HardStateSlot | None:
    """Return the newest valid slot of a directory's hard-state file, or None if the directory has no such file yet.

    Raises:
        Damaged: no slot is valid.
    """
    path = os.path.join(directory, HARD_STATE_FILE)
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    slots = [slot for at in SLOTS if (slot := decode_slot(data[at : at + MARK_SIZE_BOUND], path)) is not None]
    # A corrupt file must not get default values, because a member that has lost its promises could vote twice.
    if not slots:
        raise Damaged(
            f"{path}: both slots are corrupt (bytes 0 and {PAGE}), so the promises of this gateway are unknown; "
            "never restore this file alone from a backup, because an older copy lacks later promises"
        )
    return max(slots, key=lambda slot: slot.sequence)


def check_hard_state(directory: str, stored: HardStateSlot | None, firsts: list[int], log: str) -> None:
    """Check that an existing log has not lost its hard state or all of its segments.

    Without this check, a start would treat a log that has lost these files as a new log.

    Args:
        stored: result of `read_hard_state`.
        firsts: first positions of the segments, listed after the read of the hard state.
        log: uuid (hex) of the log that the directory holds; empty if unknown.

    Raises:
        Damaged: the hard state is missing, or the segments are missing.
    """
    if stored is None and firsts:
        path = os.path.join(directory, HARD_STATE_FILE)
        raise Damaged(
            f"{path} is missing, but the log exists, so the promises of this gateway are unknown: restore the file from "
            "where it was moved to, but never an older copy of it"
        )
    if not firsts and (log or (stored is not None and (stored.mark.position or stored.segment))):
        raise Damaged(f"{directory} held log {log}, but {os.path.join(directory, LOG)} has no segment of it: restore the files")


class HardStateFile:
    """The open hard-state file. Each write replaces the older slot and is durable when the call returns."""

    def __init__(self, directory: str, storage: Storage, stored: HardStateSlot | None) -> None:
        """Open the file and make its content durable. `stored` is the result of `read_hard_state`. If None, create the file."""
        self._storage = storage
        self.path = os.path.join(directory, HARD_STATE_FILE)
        if stored is None:
            stored = HardStateSlot(1, HardState(), VoteMark(), 0)
            # Space for both slots is written at once, so that later writes need no free disk space.
            storage.replace_file(self.path, encode_slot(stored).ljust(2 * PAGE, b"\0"))
        self.sequence = stored.sequence
        self.hard_state = stored.hard_state
        self.segment = stored.segment
        self._fd = storage.open(self.path)
        # The first slot is read to find the newest slot, because after a repair the slot does not follow from the sequence number.
        first = decode_slot(storage.read(self._fd, MARK_SIZE_BOUND, SLOTS[0]), self.path)
        newest, self._next = SLOTS if first is not None and first.sequence == self.sequence else SLOTS[::-1]
        # The newest slot is written again, because the previous run may have ended before its sync.
        storage.write(self._fd, [encode_slot(stored)], newest)
        storage.make_durable(self._fd)

    def write(self, hard_state: HardState, mark: VoteMark, segment: int) -> None:
        """Store the hard state, the mark and the first position of the newest segment, durably."""
        # Only the older slot is written, because a torn write destroys the slot that is written.
        stored = HardStateSlot(self.sequence + 1, hard_state, mark, segment)
        self._storage.write(self._fd, [encode_slot(stored)], self._next)
        self._storage.make_durable(self._fd)
        # The next slot changes only after the sync, so a write that is repeated after a full disk never touches the valid slot.
        self.sequence = stored.sequence
        self.hard_state = hard_state
        self.segment = segment
        self._next = SLOTS[1] if self._next == SLOTS[0] else SLOTS[0]

    def close(self) -> None:
        """Close the file."""
        self._storage.close(self._fd)
