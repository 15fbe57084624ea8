"""Bodies of requests: as many bytes as there is room for, in their time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request

from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem


class Held:
    """Bytes that a post takes of the limit, until its outcome is known.

    Attributes:
        host: of the caller.
        bytes: so many.
        dropped: True if its body was given up to make room for others.
    """

    def __init__(self, intake: Intake, host: str = "") -> None:
        """Nothing is taken yet."""
        self._intake = intake
        self.host = host
        self.bytes = 0
        self.dropped = False

    def grow(self, to: int) -> None:
        """Take so many in all.

        Raises:
            Problem: 429: there is no room.
        """
        more = max(0, to - self.bytes)
        if not self._intake.make_room(more, self):
            raise _no_room()
        self._intake.held += more
        self.bytes += more

    def release(self) -> None:
        """Give all back."""
        self._intake.held -= self.bytes
        self.bytes = 0


class Intake:
    """Takes bodies in. `held`: bytes of all that are there."""

    def __init__(self) -> None:
        """Nothing is there."""
        self.held = 0
        self._coming: dict[Held, asyncio.Timeout] = {}  # bodies that are not whole, the longest under way first

    def make_room(self, more: int, wanted: Held) -> bool:
        """Drop bodies that are not whole until `more` bytes fit: the ones that take longest, of the host that has the most.

        So bodies that never end keep nobody out. Return False if there is none to drop but that of `wanted` itself.
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

    async def body(self, request: Request, held: Held) -> bytes:
        """The body of a request, whole.

        Raises:
            Problem: 408 when it does not come in time, 413 when it is too large, 429 when there is no room.
            ClientDisconnect: the other side went away.
        """
        length = request.headers.get("content-length")
        if length is not None and int(length) > limits.BODY_BYTES_MAX:
            await self._linger(request)
            raise _too_large(f"{length} bytes")
        parts = bytearray()
        try:
            async with self._patience(held):
                async for part in request.stream():
                    if len(parts) + len(part) > limits.BODY_BYTES_MAX:
                        break
                    held.grow(len(parts) + len(part))
                    parts += part
                else:
                    return bytes(parts)
        except TimeoutError:
            if held.dropped:
                raise _no_room() from None
            message = f"the body was not there within {limits.BODY_S:g} s ({len(parts)} bytes were)"
            raise Problem(408, message, committed="no", close=True) from None
        held.release()
        del parts
        await self._linger(request)
        raise _too_large(f"more than {limits.BODY_BYTES_MAX} bytes")

    @contextlib.asynccontextmanager
    async def _patience(self, held: Held) -> AsyncIterator[None]:
        """The time for a body, which ends early where it is dropped."""
        async with asyncio.timeout(limits.BODY_S) as timeout:
            self._coming[held] = timeout
            try:
                yield
            finally:
                self._coming.pop(held, None)

    async def _linger(self, request: Request) -> None:
        """Read on for a moment: who is cut off while it sends does not hear the answer."""
        size = 0
        with contextlib.suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(limits.LINGER_S):
                while size <= limits.LINGER_BYTES_MAX:
                    message = await request.receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return


def _no_room() -> Problem:
    return Problem(429, "more posts are on their way than there is room for: come again", committed="no", close=True)


def _too_large(what: str) -> Problem:
    return Problem(413, f"the body has {what}; at most {limits.BODY_BYTES_MAX} are taken: cut the post", committed="no", close=True)
