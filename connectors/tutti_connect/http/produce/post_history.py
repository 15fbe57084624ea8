"""What a producer has posted: where the next post has to begin, and which of the last ones a repeat is of.

It travels with each post as the producer's progress, so that whichever process gets the repeat knows what any other has committed.
No clock, socket or thread.
"""

from __future__ import annotations

import enum
import secrets
import struct
from collections import deque
from typing import NamedTuple

from tutti.data.frames.frame import PROGRESS_BYTES_MAX
from tutti.errors import FormatError
from tutti_connect.http import limits

_HEAD = struct.Struct("<2sQq8sq")  # mark, last sequence, offset below which the newest post does not lie, count, its begin
_POST = struct.Struct("<I8sq")  # records, digest, offset; the newest first
_MARK = b"h2"
POSTS_TOLD = (PROGRESS_BYTES_MAX - _HEAD.size) // _POST.size
OFFSET_UNKNOWN = -1


class Post(NamedTuple):
    """A committed post.

    Attributes:
        first, records: sequence of its first record, and how many it has.
        digest: of topic and content.
        offset: of its first record; -1 when it is not known here.
    """

    first: int
    records: int
    digest: bytes
    offset: int = OFFSET_UNKNOWN


class Verdict(enum.Enum):
    """What a post is, by its sequence."""

    NEXT = "next"
    REPEAT = "repeat"  # of a post that is remembered
    OLD = "old"  # of what was committed before all that is remembered
    GAP = "gap"  # something before it is missing
    OVERLAP = "overlap"  # a part of it is committed
    DIFFERENT = "different"  # committed with other content, or cut otherwise


class History:
    """The posts of one producer, as far as they are remembered.

    Attributes:
        last: sequence of the last committed record, 0 before any.
        low: an offset that the last post does not lie below.
        count: which count of the producer's records this is, eight random bytes: one that was forgotten begins another.
        begin: offset of the record with sequence 1 of this count; -1 when it is not known here.
        posts: the last ones, the oldest first; they follow each other without a gap, up to `last`.
    """

    def __init__(self, last: int = 0) -> None:
        """Nothing is remembered."""
        self.last = last
        self.low = 0
        self.count, self.begin = secrets.token_bytes(8), OFFSET_UNKNOWN
        self.posts: deque[Post] = deque(maxlen=limits.POSTS_REMEMBERED)

    @classmethod
    def decode(cls, sequence: int, progress: bytes, name: str) -> History:
        """From what `resume()` tells.

        Raises:
            FormatError: another kind of client uses this name.
        """
        history = cls(sequence)
        if not progress:
            return history
        if len(progress) < _HEAD.size or (len(progress) - _HEAD.size) % _POST.size or progress[:2] != _MARK:
            raise FormatError(f"producer {name} of the log was used by something else than this connector: use another name")
        _, last, low, count, begin = _HEAD.unpack_from(progress)
        if last != sequence:
            return history  # somebody else has sent under this name since: nothing is known of that
        history.low, history.count, history.begin = low, count, begin
        found: list[Post] = []
        end = last
        for count, digest, offset in _POST.iter_unpack(progress[_HEAD.size :]):
            if not 0 < count <= end:
                raise FormatError(f"the progress of producer {name} of the log is damaged: its posts begin before the first record")
            found.append(Post(end - count + 1, count, digest, offset))
            end -= count
        history.posts.extend(reversed(found))
        return history

    @property
    def expected(self) -> int:
        """Sequence of the first record of the next post."""
        return self.last + 1

    def progress(self, count: int, digest: bytes) -> bytes:
        """What commits with the next post."""
        newest = [_POST.pack(count, digest, OFFSET_UNKNOWN)]
        newest += [_POST.pack(*post[1:]) for post in list(self.posts)[:-POSTS_TOLD:-1]]
        return _HEAD.pack(_MARK, self.last + count, self._low(), self.count, self.begin) + b"".join(newest)

    def committed(self, count: int, digest: bytes, offset: int) -> Post:
        """The next post is in the log."""
        self.low = self._low()
        post = Post(self.expected, count, digest, offset)
        self.posts.append(post)
        self.last += count
        self._note_begin(post)
        return post

    def found(self, post: Post, offset: int) -> None:
        """The place of a post was looked up."""
        for number, known in enumerate(self.posts):
            if known.first == post.first:
                self.posts[number] = known._replace(offset=offset)
        self._note_begin(post._replace(offset=offset))

    def judge(self, first: int, count: int, digest: bytes) -> tuple[Verdict, Post | None]:
        """What a post is; with the one that it repeats."""
        if first == self.expected:
            return Verdict.NEXT, None
        if first > self.expected:
            return Verdict.GAP, None
        if first + count > self.expected:
            return Verdict.OVERLAP, None
        for post in reversed(self.posts):
            if post.first <= first:
                same = (post.first, post.records, post.digest) == (first, count, digest)
                return (Verdict.REPEAT, post) if same else (Verdict.DIFFERENT, None)
        oldest = self.posts[0].first if self.posts else self.expected
        return (Verdict.OLD if first + count <= oldest else Verdict.DIFFERENT), None

    def range_of(self, first: int) -> tuple[int, int | None]:
        """Offsets between which the post that begins with a sequence lies: from, and before (None: not known).

        Where `begin` is not known they may hold records of an earlier count with the same sequences: the last one is it.
        """
        low, high = max(self.begin, 0), None
        for post in self.posts:
            if post.offset == OFFSET_UNKNOWN:
                continue
            if post.first < first:
                low = post.offset + post.records
            elif high is None:
                high = post.offset + 1 if post.first == first else post.offset
        if self.posts and first == self.posts[-1].first:
            low = max(low, self.low)
        return low, high

    def _note_begin(self, post: Post) -> None:
        if post.first == 1 and post.offset != OFFSET_UNKNOWN:
            self.begin = post.offset

    def _low(self) -> int:
        """An offset that what comes next does not lie below."""
        known = next((post.offset + post.records for post in reversed(self.posts) if post.offset != OFFSET_UNKNOWN), 0)
        return max(self.low, known)
