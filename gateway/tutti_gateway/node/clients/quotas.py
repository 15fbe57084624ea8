"""Quotas of tokens as back-pressure: a batch above the quota of its token waits here, and is then handled like a new one.

A batch costs time: the time in which the quota allows its records or its bytes, whichever is longer. The gateway accepts a batch at
the end of this time, so no interval has more than its quota plus a short burst. The batches of a token wait in the order of their
arrival. Each gateway counts for itself.

A client whose token has a quota gets a small window. A client sends a batch again if the answer is late, and the copy of a waiting
batch is ignored. Above a memory limit, the port does not read the clients of a token. Source: generic cell rate algorithm (ITU-T
I.371), with a burst of `QUOTA_BURST_US`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from tutti import limits as common_limits
from tutti.data.frames.frame import Frame
from tutti.security.tokens import Access
from tutti_gateway.core import limits
from tutti_gateway.node.clients.sessions import Session, Sessions

_US = 1_000_000
_Key = tuple[int, int, int, int, int]  # session, producer, epoch, first sequence, count


class _Line:
    """The waiting batches of one token, oldest first.

    Attributes:
        bytes: memory of the waiting batches.
        used_until_us: the time up to which the accepted batches have used the quota.
        throttled_us: total time in which batches waited, without the current wait.
        since_us: start of the current wait.
    """

    __slots__ = ("bytes", "frames", "since_us", "throttled_us", "used_until_us")

    def __init__(self) -> None:
        self.frames: OrderedDict[_Key, tuple[Session, Frame]] = OrderedDict()
        self.bytes = self.used_until_us = self.throttled_us = self.since_us = 0


class Quotas:
    """The batches that wait for the quota of their token. Owned by the driver's thread; all times are monotonic."""

    def __init__(self, sessions: Sessions) -> None:
        """Begin without batches. `sessions` is the table of the driver."""
        self._sessions = sessions
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # by name of the token; the line that was used last is the last one
        self._waiting: dict[str, _Line] = {}  # the lines with waiting batches
        self._bytes = 0  # memory of all waiting batches

    def applies_to(self, access: Access) -> bool:
        """True if batches of the token must pass `put`: it has a quota, or has lost its quota while batches wait."""
        return access.has_quota or access.name in self._waiting

    def may_read(self, access: Access) -> bool:
        """True if the memory limits allow to read further batches of the token."""
        if not access.has_quota or not self._waiting:
            return True
        line = self._waiting.get(access.name)
        return self._bytes < limits.QUOTA_BYTES_MAX and (line is None or line.bytes < limits.QUOTA_TOKEN_BYTES_MAX)

    def put(self, session: Session, frames: Iterable[Frame], now_us: int) -> None:
        """Append batches of a session. `pop_due` returns them once their token's quota allows them."""
        name = session.access.name
        line = self._lines.setdefault(name, _Line())
        self._lines.move_to_end(name)
        for frame in frames:
            key = session.number, frame.producer, frame.epoch, frame.first_sequence, frame.count
            if key not in line.frames:  # a client sends a batch again if its answer is late
                line.frames[key] = session, frame
                self._add_bytes(line, _memory(frame))
        if line.frames and name not in self._waiting:
            self._waiting[name] = line
            line.since_us = now_us
            # Quota that a token did not use while it was idle expires, except for the burst.
            line.used_until_us = max(line.used_until_us, now_us)
        self._drop_unused(now_us)

    def pop_due(self, now_us: int, bytes_max: int) -> Iterator[tuple[Session, list[Frame]]]:
        """Yield the sessions with the batches that their quotas allow now, at least one batch if any is due.

        Args:
            now_us: time.
            bytes_max: size of the batches above which the next ones wait for the next call.
        """
        due: dict[int, tuple[Session, list[Frame]]] = {}
        for name, line in list(self._waiting.items()):
            while line.frames and bytes_max > 0:
                key, (session, frame) = next(iter(line.frames.items()))
                if self._sessions.get(session.number) is session:  # batches of a session that has ended are dropped without cost
                    cost_us = _cost_us(session.access, frame)
                    if now_us < line.used_until_us + cost_us - limits.QUOTA_BURST_US:
                        break
                    # A batch that waited for longer than its cost leaves no more than the burst to later batches.
                    line.used_until_us = max(line.used_until_us, now_us - max(0, cost_us - limits.QUOTA_BURST_US)) + cost_us
                    due.setdefault(session.number, (session, []))[1].append(frame)
                    bytes_max -= frame.size
                del line.frames[key]
                self._add_bytes(line, -_memory(frame))
            if not line.frames:
                del self._waiting[name]
                line.throttled_us += now_us - line.since_us
        yield from due.values()

    def next_us(self) -> int | None:
        """Return the time at which the next batch is due; None if no batch waits."""
        due = None
        for line in self._waiting.values():
            session, frame = next(iter(line.frames.values()))
            at_us = line.used_until_us + _cost_us(session.access, frame) - limits.QUOTA_BURST_US
            due = at_us if due is None else min(due, at_us)
        return due

    def clear(self) -> None:
        """Drop all waiting batches, after all sessions have ended."""
        for line in self._waiting.values():
            line.frames.clear()
            line.bytes = 0
        self._waiting.clear()
        self._bytes = 0

    def to_dict(self, now_us: int) -> dict[str, object]:
        """Return the values for the status: memory of the waiting batches, and the throttled time of each token, us."""
        waiting = self._waiting
        throttled = {
            name: line.throttled_us + (now_us - line.since_us if name in waiting else 0) for name, line in self._lines.items()
        }
        return {"waiting_bytes": self._bytes, "throttled_us": throttled}

    def _add_bytes(self, line: _Line, size: int) -> None:
        line.bytes += size
        self._bytes += size

    def _drop_unused(self, now_us: int) -> None:
        """Drop the lines that were unused for longest, so that removed tokens leave nothing behind."""
        while len(self._lines) > common_limits.TOKENS_MAX:
            name, line = next(iter(self._lines.items()))
            if name in self._waiting or line.used_until_us > now_us:
                break  # dropping this line would forget used quota
            del self._lines[name]


def _memory(frame: Frame) -> int:
    return frame.size + limits.QUOTA_FRAME_BYTES


def _cost_us(access: Access, frame: Frame) -> int:
    """Return the time of its token's quota that a batch uses, us."""
    records_us = frame.count * _US // access.records_per_s if access.records_per_s else 0
    bytes_us = frame.size * _US // access.bytes_per_s if access.bytes_per_s else 0
    # A batch above a small quota costs at most 30 s, because its client gives up the delivery after 60 s.
    return min(max(records_us, bytes_us), limits.QUOTA_BATCH_US_MAX)
