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
    """Memory of a post within the budget, until its outcome is known.

    Attributes:
        host: host of the caller.
        bytes: size in bytes.
        dropped: True if the body was dropped to free memory for others.
    """

    def __init__(self, intake: BodyReader, host: str = "") -> None:
        """Start with no memory."""
        self._intake = intake
        self.host = host
        self.bytes = 0
        self.dropped = False

    def grow(self, to: int) -> None:
        """Grow to `to` bytes in total.

        Raises:
            Problem: 429: the budget is used up.
        """
        more = max(0, to - self.bytes)
        if not self._intake.make_room(more, self):
            raise _budget_exhausted()
        self._intake.held += more
        self.bytes += more

    def release(self) -> None:
        """Return all memory to the budget."""
        self._intake.held -= self.bytes
        self.bytes = 0


class BodyReader:
    """Reads bodies. `held`: bytes of all bodies in memory."""

    def __init__(self) -> None:
        """Start with no body."""
        self.held = 0
        self._coming: dict[BodyReservation, asyncio.Timeout] = {}  # incomplete bodies, the oldest first

    def make_room(self, more: int, wanted: BodyReservation) -> bool:
        """Drop incomplete bodies until `more` bytes fit: the oldest ones of the host that uses most.

        Bodies that never end therefore do not block others. Return False if only the body of `wanted` could be dropped.
        """
        while self.held + more > limits.BODIES_BYTES_MAX:
            of_hosts: Counter[str] = Counter()
            for one in self._coming:
                of_hosts[one.host] += one.bytes
            largest = max(of_hosts, key=lambda host: of_hosts[host], default=None)
            longest = next((one for one in self._coming if one.host == largest and (one.bytes or one is wanted)), wanted)
            if longest is wanted:
                return False
            longest.dropped = True
            longest.release()
            timeout = self._coming.pop(longest)
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
        return True

    async def body(self, request: Request, held: BodyReservation) -> bytes:
        """Return the complete body of a request.

        Raises:
            Problem: 408 if it does not arrive in time, 413 if it is too large, 429 if the budget is used up.
            ClientDisconnect: the caller disconnected.
        """
        length = request.headers.get("content-length")
        if length is not None and int(length) > limits.BODY_BYTES_MAX:
            await self._linger(request)
            raise _too_large(f"{length} bytes")
        parts = bytearray()
        try:
            async with self._time_limit(held):
                async for part in request.stream():
                    if len(parts) + len(part) > limits.BODY_BYTES_MAX:
                        break
                    held.grow(len(parts) + len(part))
                    parts += part
                else:
                    return bytes(parts)
        except TimeoutError:
            if held.dropped:
                raise _budget_exhausted() from None
            message = f"the body did not arrive within {limits.BODY_S:g} s ({len(parts)} bytes did)"
            raise Problem(408, message, committed="no", close=True) from None
        held.release()
        del parts
        await self._linger(request)
        raise _too_large(f"more than {limits.BODY_BYTES_MAX} bytes")

    @contextlib.asynccontextmanager
    async def _time_limit(self, held: BodyReservation) -> AsyncIterator[None]:
        """Limit the time of a body, and end early if it is dropped."""
        async with asyncio.timeout(limits.BODY_S) as timeout:
            self._coming[held] = timeout
            try:
                yield
            finally:
                self._coming.pop(held, None)

    async def _linger(self, request: Request) -> None:
        """Read on briefly: a caller that is disconnected while it sends does not receive the answer."""
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
