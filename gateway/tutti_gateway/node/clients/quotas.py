"""Quotas of tokens as back-pressure: a batch above the quota of its token waits here, and is then handled like a new one.

The cost of a batch is the time in which the quota allows the records or the bytes of the batch, whichever is longer. The gateway
accepts a batch only after this time has passed, so no interval has more records or bytes than the quota and a short burst. Only a
batch that costs more than `QUOTA_BATCH_US_MAX` exceeds the quota, because its cost is limited to that time. The batches of a token
wait in the order of their arrival. Each gateway applies the whole quota, independent of other gateways.

A client whose token has a quota gets a small window. If an answer is late, the client sends Hello, and the Welcome shows which
batches wait here, so the client does not send them again. After a reconnect, the client sends all unanswered batches again, and
this module ignores the copy of a waiting batch. While the waiting batches of a token exceed a memory limit, the port does not read
the clients of this token. Source: generic cell rate algorithm (ITU-T I.371), with a burst of `QUOTA_BURST_US`.
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


class _TokenQueue:
    """The waiting batches of one token, oldest first.

    Attributes:
        bytes: memory of the waiting batches.
        used_until_us: time up to which accepted batches have used the quota; later batches use the quota after this time.
        throttled_us: total time for which batches have waited, except for the current wait.
        since_us: start of the current wait, while `frames` is not empty.
    """

    __slots__ = ("bytes", "frames", "since_us", "throttled_us", "used_until_us")

    def __init__(self) -> None:
        self.frames: OrderedDict[_Key, tuple[Session, Frame]] = OrderedDict()
        self.bytes = self.used_until_us = self.throttled_us = self.since_us = 0


class Quotas:
    """The batches that wait for the quota of their token. Owned by the driver's thread; all times are monotonic.

    Attributes:
        waiting: by name of the token, the queues with waiting batches.
    """

    def __init__(self, sessions: Sessions) -> None:
        """Create an empty table of waiting batches. `sessions` is the session table of the driver."""
        self._sessions = sessions
        self._queues: OrderedDict[str, _TokenQueue] = OrderedDict()  # token name -> queue, the least recently used first
        self.waiting: dict[str, _TokenQueue] = {}
        self._bytes = 0  # memory of all waiting batches

    def applies_to(self, access: Access) -> bool:
        """True if batches of the token must pass `put`: the token has a quota, or earlier batches of the token still wait."""
        return access.has_quota or access.name in self.waiting

    def may_read(self, access: Access) -> bool:
        """True if the waiting batches are below the memory limits, so that the port may read further batches of the token."""
        if not access.has_quota or not self.waiting:
            return True
        queue = self.waiting.get(access.name)
        return self._bytes < limits.QUOTA_BYTES_MAX and (queue is None or queue.bytes < limits.QUOTA_TOKEN_BYTES_MAX)

    def put(self, session: Session, frames: Iterable[Frame], now_us: int) -> None:
        """Append batches of a session. `pop_due` returns them once their token's quota allows them."""
        name = session.access.name
        queue = self._queues.setdefault(name, _TokenQueue())
        self._queues.move_to_end(name)
        for frame in frames:
            key = session.number, frame.producer, frame.epoch, frame.first_sequence, frame.count
            if key not in queue.frames:  # a client sends its batches again after a reconnect
                queue.frames[key] = session, frame
                session.held.append(frame.first_sequence)
                self._add_bytes(queue, _memory(frame))
        if queue.frames and name not in self.waiting:
            self.waiting[name] = queue
            queue.since_us = now_us
            # An idle token does not save up quota for later, except for the burst.
            queue.used_until_us = max(queue.used_until_us, now_us)
        self._drop_unused(now_us)

    def pop_due(self, now_us: int, bytes_max: int) -> Iterator[tuple[Session, list[Frame]]]:
        """Yield, by session, the batches that their quotas allow now.

        Args:
            now_us: time.
            bytes_max: total size at which the call returns no further batches. The last batch may exceed this size.
        """
        due: dict[int, tuple[Session, list[Frame]]] = {}
        for name, queue in list(self.waiting.items()):
            while queue.frames and bytes_max > 0:
                key, (session, frame) = next(iter(queue.frames.items()))
                if self._sessions.get(session.number) is session:  # batches of a session that has ended are dropped without cost
                    cost_us = _cost_us(session.access, frame)
                    if now_us < queue.used_until_us + cost_us - limits.QUOTA_BURST_US:
                        break
                    # If this batch waited for longer than its cost, the unused quota is lost, except for the burst.
                    queue.used_until_us = max(queue.used_until_us, now_us - max(0, cost_us - limits.QUOTA_BURST_US)) + cost_us
                    due.setdefault(session.number, (session, []))[1].append(frame)
                    bytes_max -= frame.size
                del queue.frames[key]
                session.held.popleft()  # a session's batches wait in one queue, so this batch is the oldest one of its session
                self._add_bytes(queue, -_memory(frame))
            if not queue.frames:
                del self.waiting[name]
                queue.throttled_us += now_us - queue.since_us
        yield from due.values()

    def next_us(self) -> int | None:
        """Return the time at which the next batch is due; None if no batch waits."""
        due = None
        for queue in self.waiting.values():
            session, frame = next(iter(queue.frames.values()))
            # A batch of a session that has ended costs nothing, so `pop_due` can drop it at once and reach the next batch.
            ended = self._sessions.get(session.number) is not session
            at_us = queue.used_until_us + (0 if ended else _cost_us(session.access, frame)) - limits.QUOTA_BURST_US
            due = at_us if due is None else min(due, at_us)
        return due

    def clear(self, now_us: int) -> None:
        """Drop all waiting batches, after all sessions have ended."""
        for queue in self.waiting.values():
            queue.throttled_us += now_us - queue.since_us
            queue.frames.clear()
            queue.bytes = 0
        self.waiting.clear()
        self._bytes = 0

    def to_dict(self, now_us: int) -> dict[str, object]:
        """Return values for the status: the bytes of waiting batches, and the microseconds for which each token was throttled."""
        waiting = self.waiting
        throttled = {
            name: queue.throttled_us + (now_us - queue.since_us if name in waiting else 0) for name, queue in self._queues.items()
        }
        return {"waiting_bytes": self._bytes, "throttled_us": throttled}

    def _add_bytes(self, queue: _TokenQueue, size: int) -> None:
        queue.bytes += size
        self._bytes += size

    def _drop_unused(self, now_us: int) -> None:
        """Drop the least recently used queues above the limit of tokens, so that removed tokens take no memory."""
        while len(self._queues) > common_limits.TOKENS_MAX:
            name, queue = next(iter(self._queues.items()))
            if name in self.waiting or queue.used_until_us > now_us:
                break  # without this queue, its token would get the quota that it has already used once more
            del self._queues[name]


def _memory(frame: Frame) -> int:
    return frame.size + limits.QUOTA_FRAME_BYTES


def _cost_us(access: Access, frame: Frame) -> int:
    """Return the cost of a batch: the time (us) for which the batch uses the quota of its token."""
    records_us = frame.count * _US // access.records_per_s if access.records_per_s else 0
    bytes_us = frame.size * _US // access.bytes_per_s if access.bytes_per_s else 0
    # A batch above a small quota costs at most 30 s, because its client gives up the delivery after 60 s.
    return min(max(records_us, bytes_us), limits.QUOTA_BATCH_US_MAX)
