"""Read-only inspection of a spool, with or without a running producer. The inspection reports corrupt parts and skips them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from tutti.errors import Damaged, FormatError, WrongDirectory
from tutti.runtime.durable_files import open_file
from tutti.spool.block_format import HEAD_BYTES, Block, BlockIterator, Fetch, Head, decode_head, find_block_heads, is_torn, seed_of
from tutti.spool.commit_mark import State, decode_state
from tutti.spool.store import REFUSED, SEGMENT, STATE


class CorruptPart(NamedTuple):
    """An unreadable part of a spool: the file, the first unreadable byte, and the reason."""

    file: str
    at: int
    why: str


def read_state(path: str) -> State:
    """Read the state file of the spool in directory `path`.

    Raises:
        WrongDirectory: the directory is not a spool.
        Damaged, FormatError: the state cannot be read.
    """
    try:
        with open(os.path.join(path, STATE), "rb", opener=open_file) as file:
            return decode_state(file.read(1 << 20))
    except (FileNotFoundError, NotADirectoryError):
        raise WrongDirectory(f"{path} is not a spool: it has no {STATE}") from None
    except (Damaged, FormatError) as error:
        raise type(error)(f"spool {path}: {error}") from error


def scan_blocks(path: str, state: State) -> Iterator[Block | CorruptPart]:
    """Yield, in order, all blocks that are not known to be committed or refused, and the unreadable parts of segments."""
    numbers = sorted(int(match[1]) for name in os.listdir(path) if (match := SEGMENT.match(name)))
    numbers = [number for number in numbers if number >= state.first]
    # Report missing segments: numbers have no gaps, and all segments up to `sent` have existed.
    for missing in sorted(set(range(state.first, max([*numbers, state.sent]) + 1)) - set(numbers)):
        yield CorruptPart(_name(missing), 0, "the file is not there")
    found = {number: _head(path, state, number) for number in numbers}
    for number in numbers:
        head, following = found[number], found.get(number + 1)
        # Do not report a partial head of the last segment, because a crash during its creation leaves one.
        begun = number != numbers[-1] or os.path.getsize(os.path.join(path, _name(number))) > HEAD_BYTES
        if isinstance(head, CorruptPart) and begun:
            yield head
        # The head of the next segment contains the valid length of this one.
        end = following.before_end if isinstance(following, Head) else None
        for one in _segment(path, state, number, end):
            if isinstance(one, CorruptPart) or (one.position > state.done and one.before not in state.aside):
                yield one


def refused(path: str) -> list[str]:
    """Return the files of refused batches."""
    directory = os.path.join(path, REFUSED)
    if not os.path.isdir(directory):
        return []
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".arrow")]


def _name(number: int) -> str:
    return f"{number:08}.seg"


def _head(path: str, state: State, number: int) -> Head | CorruptPart:
    with open(os.path.join(path, _name(number)), "rb", opener=open_file) as file:
        try:
            head = decode_head(file.read(HEAD_BYTES))
        except (Damaged, FormatError) as error:
            return CorruptPart(_name(number), 0, str(error))
    if head.id != state.id or head.number != number:
        return CorruptPart(_name(number), 0, "it belongs to another spool")
    return head


def _segment(path: str, state: State, number: int, end: int | None) -> Iterator[Block | CorruptPart]:
    """Yield the blocks and unreadable parts of one segment. Its valid length is `end`; None means unknown."""
    fd = open_file(os.path.join(path, _name(number)), os.O_RDONLY)
    try:
        size, seed = os.fstat(fd).st_size, seed_of(state.id, number)

        def fetch(size: int, at: int) -> bytes:
            return os.pread(fd, size, at)

        blocks = BlockIterator(fetch, number, seed)
        while True:
            try:
                block = blocks.next(size if end is None else end)
                why = "the file ends in the middle of a record"
            except FormatError as error:
                block, why = None, str(error)
            if block is not None:
                yield block
                continue
            intact = blocks.at >= end if end is not None else is_torn(fetch, blocks.at, size, number, seed)
            if intact:
                return
            yield CorruptPart(_name(number), blocks.at, why)
            # Accept only a head with a valid body, because records may contain bytes that look like a head.
            after = next(
                (head for head in find_block_heads(fetch, blocks.at + 1, size, number, seed) if _good(fetch, head, seed)), None
            )
            if after is None:
                return
            # Continue at the next readable block, with the record number in its head.
            blocks.go(after.start, after.before.records)
    finally:
        os.close(fd)


def _good(fetch: Fetch, head: Block, seed: int) -> bool:
    """Return True if the progress and the body after a block head are valid too."""
    one = BlockIterator(fetch, head.position.segment, seed)
    one.go(head.start, head.before.records)
    try:
        return one.next(head.end) is not None
    except FormatError:
        return False
