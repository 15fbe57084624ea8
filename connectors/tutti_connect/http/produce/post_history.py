"""Post history of a producer: the next expected sequence, and the recent posts, by which a repeat is recognised.

Each post commits the newest part of the history as the producer's progress, so that every process can recognise a repeat. This
module has no clock, socket or thread.
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

# Fields: format mark, last sequence, lower bound of the newest post's offset, id of the numbering, offset of its first record.
_HEAD = struct.Struct("<2sQq8sq")
_POST = struct.Struct("<I8sq")  # records, digest, offset; the newest first
_MARK = b"h2"
POSTS_ENCODED_MAX = (PROGRESS_BYTES_MAX - _HEAD.size) // _POST.size
OFFSET_UNKNOWN = -1


class Post(NamedTuple):
    """A committed post.

    Attributes:
        first, records: sequence of the first record, and number of records.
        digest: digest of topic and content.
        offset: offset of the first record; -1 if this process does not know it.
    """

    first: int
    records: int
    digest: bytes
    offset: int = OFFSET_UNKNOWN


class Verdict(enum.Enum):
    """Classification of a post by its sequence."""

    NEXT = "next"
    REPEAT = "repeat"  # the post repeats a post in the history
    OLD = "old"  # the post was committed before the oldest post in the history
    GAP = "gap"  # earlier records are missing
    OVERLAP = "overlap"  # part of the post is committed
    DIFFERENT = "different"  # the log has other records at these sequences, or the same records in other posts


class History:
    """Known posts of one producer.

    Attributes:
        last: sequence of the last committed record, 0 before the first.
        low: lower bound of the last post's offset.
        count: random id (8 bytes) of the producer's numbering, which starts again at 1 if the producer's state is deleted.
        begin: offset of the record with sequence 1 in this numbering; -1 if this process does not know it.
        posts: recent posts up to `last` without a gap, the oldest first.
    """

    def __init__(self, last: int = 0) -> None:
        """Start without any posts."""
        self.last = last
        self.low = 0
        self.count, self.begin = secrets.token_bytes(8), OFFSET_UNKNOWN
        self.posts: deque[Post] = deque(maxlen=limits.POSTS_REMEMBERED)

    @classmethod
    def decode(cls, sequence: int, progress: bytes, name: str) -> History:
        """Decode the progress that `resume()` returns.

        Raises:
            FormatError: the progress is corrupt, or is from another program that used this producer name.
        """
        history = cls(sequence)
        if not progress:
            return history
        if len(progress) < _HEAD.size or (len(progress) - _HEAD.size) % _POST.size or progress[:2] != _MARK:
            raise FormatError(f"producer {name} of the log was used by another program than this connector: choose another name")
        _, last, low, count, begin = _HEAD.unpack_from(progress)
        if last != sequence:
            return history  # another program has sent records under this name since the last post, so the history is outdated
        history.low, history.count, history.begin = low, count, begin
        found: list[Post] = []
        end = last
        for count, digest, offset in _POST.iter_unpack(progress[_HEAD.size :]):
            if not 0 < count <= end:
                raise FormatError(f"the progress of producer {name} of the log is corrupt: its posts begin before the first record")
            found.append(Post(end - count + 1, count, digest, offset))
            end -= count
        history.posts.extend(reversed(found))
        return history

    @property
    def expected(self) -> int:
        """Return the expected sequence of the next post."""
        return self.last + 1

    def progress(self, count: int, digest: bytes) -> bytes:
        """Return the progress to commit with the next post."""
        newest = [_POST.pack(count, digest, OFFSET_UNKNOWN)]
        newest += [_POST.pack(*post[1:]) for post in list(self.posts)[:-POSTS_ENCODED_MAX:-1]]
        return _HEAD.pack(_MARK, self.last + count, self._offset_lower_bound(), self.count, self.begin) + b"".join(newest)

    def committed(self, count: int, digest: bytes, offset: int) -> Post:
        """Add a committed post."""
        self.low = self._offset_lower_bound()
        post = Post(self.expected, count, digest, offset)
        self.posts.append(post)
        self.last += count
        self._update_begin(post)
        return post

    def set_offset(self, post: Post, offset: int) -> None:
        """Store the offset that a search has found for a post."""
        for number, known in enumerate(self.posts):
            if known.first == post.first:
                self.posts[number] = known._replace(offset=offset)
        self._update_begin(post._replace(offset=offset))

    def classify(self, first: int, count: int, digest: bytes) -> tuple[Verdict, Post | None]:
        """Classify a post; for a repeat, also return the original post."""
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
        """Return the range of offsets [low, high) in which the post with first sequence `first` begins; `high` is None if unknown.

        While `begin` is unknown, the range may also contain a record with this sequence from an earlier numbering, so the last
        match in the range is the right one.
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

    def _update_begin(self, post: Post) -> None:
        if post.first == 1 and post.offset != OFFSET_UNKNOWN:
            self.begin = post.offset

    def _offset_lower_bound(self) -> int:
        """Return a lower bound of the next post's offset."""
        known = next((post.offset + post.records for post in reversed(self.posts) if post.offset != OFFSET_UNKNOWN), 0)
        return max(self.low, known)
