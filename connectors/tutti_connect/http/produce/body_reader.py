"""Reading of request bodies, within a memory budget and a time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request

from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem


class BodyReservation:
    """A post's share of the memory budget, held until the post's outcome is known.

    Attributes:
        host: host of the caller.
        bytes: memory that the post holds.
        dropped: whether the reader dropped the body to free memory for other posts.
    """

    def __init__(self, body_reader: BodyReader, host: str = "") -> None:
        """Start with a share of 0 bytes."""
        self._body_reader = body_reader
        self.host = host
        self.bytes = 0
        self.dropped = False

    def grow(self, to: int) -> None:
        """Grow to `to` bytes in total.

        Raises:
            Problem: 429: the budget is used up.
        """
        wanted_bytes = max(0, to - self.bytes)
        if not self._body_reader.free_memory(wanted_bytes, self):
            raise _budget_exhausted()
        self._body_reader.reserved_bytes += wanted_bytes
        self.bytes += wanted_bytes

    def release(self) -> None:
        """Return all memory to the budget."""
        self._body_reader.reserved_bytes -= self.bytes
        self.bytes = 0


class BodyReader:
    """Reads request bodies; `reserved_bytes` is the memory that all posts hold."""

    def __init__(self) -> None:
        """Start with no body."""
        self.reserved_bytes = 0
        self._incomplete: dict[BodyReservation, asyncio.Timeout] = {}  # incomplete bodies, the oldest first

    def free_memory(self, wanted_bytes: int, requester: BodyReservation) -> bool:
        """Drop incomplete bodies until `wanted_bytes` more fit, first the oldest ones of the host that uses the most memory.

        Dropping keeps bodies that never end from blocking other posts. Return False if the next body to drop would be that of
        `requester`.
        """
        while self.reserved_bytes + wanted_bytes > limits.BODIES_BYTES_MAX:
            bytes_by_host: Counter[str] = Counter()
            for one in self._incomplete:
                bytes_by_host[one.host] += one.bytes
            largest = max(bytes_by_host, key=lambda host: bytes_by_host[host], default=None)
            victim = next((one for one in self._incomplete if one.host == largest and (one.bytes or one is requester)), requester)
            if victim is requester:
                return False
            victim.dropped = True
            victim.release()
            timeout = self._incomplete.pop(victim)
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
        return True

    async def body(self, request: Request, reservation: BodyReservation) -> bytes:
        """Return the complete body of a request.

        Raises:
            Problem: 408 if the body does not arrive in time, 413 if it is too large, 429 if the budget is used up.
            starlette.requests.ClientDisconnect: the caller disconnected.
        """
        length = request.headers.get("content-length")
        if length is not None and int(length) > limits.BODY_BYTES_MAX:
            await self._linger(request)
            raise _too_large(f"{length} bytes")
        parts = bytearray()
        try:
            async with self._time_limit(reservation):
                async for part in request.stream():
                    if len(parts) + len(part) > limits.BODY_BYTES_MAX:
                        break
                    reservation.grow(len(parts) + len(part))
                    parts += part
                else:
                    return bytes(parts)
        except TimeoutError:
            if reservation.dropped:
                raise _budget_exhausted() from None
            message = f"the body did not arrive within {limits.BODY_S:g} s ({len(parts)} bytes did)"
            raise Problem(408, message, committed="no", close=True) from None
        reservation.release()
        del parts
        await self._linger(request)
        raise _too_large(f"more than {limits.BODY_BYTES_MAX} bytes")

    @contextlib.asynccontextmanager
    async def _time_limit(self, reservation: BodyReservation) -> AsyncIterator[None]:
        """Raise TimeoutError in the block after `limits.BODY_S`, or at once when `free_memory` drops the body."""
        async with asyncio.timeout(limits.BODY_S) as timeout:
            self._incomplete[reservation] = timeout
            try:
                yield
            finally:
                self._incomplete.pop(reservation, None)

    async def _linger(self, request: Request) -> None:
        """Read the rest of a rejected body for a short time, because a caller that still sends might not receive the answer."""
        size = 0
        with contextlib.suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(limits.LINGER_S):
                while size <= limits.LINGER_BYTES_MAX:
                    message = await request.receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return


def _budget_exhausted() -> Problem:
    return Problem(429, "the memory budget for posts is used up: retry later", committed="no", close=True)


def _too_large(what: str) -> Problem:
    return Problem(
        413, f"the body has {what}; at most {limits.BODY_BYTES_MAX} are allowed: split the post", committed="no", close=True
    )
