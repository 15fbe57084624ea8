"""Bodies of requests: as many bytes as there is room for, in their time."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request

from connectors.http import limits
from connectors.http.problems import Problem


class Held:
    """Bytes that a post takes of the room, until its outcome is known."""

    def __init__(self, intake: Intake) -> None:
        """Nothing is taken yet."""
        self._intake = intake
        self.bytes = 0

    def grow(self, to: int) -> None:
        """Take so many in all.

        Raises:
            Problem: 429: there is no room.
        """
        more = max(0, to - self.bytes)
        if self._intake.held + more > limits.BODIES_BYTES_MAX:
            raise Problem(429, "more posts are on their way than there is room for: come again", committed="no", close=True)
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
            async with asyncio.timeout(limits.BODY_S):
                async for part in request.stream():
                    if len(parts) + len(part) > limits.BODY_BYTES_MAX:
                        break
                    held.grow(len(parts) + len(part))
                    parts += part
                else:
                    return bytes(parts)
        except TimeoutError:
            message = f"the body was not there within {limits.BODY_S:g} s ({len(parts)} bytes were)"
            raise Problem(408, message, committed="no", close=True) from None
        held.release()
        del parts
        await self._linger(request)
        raise _too_large(f"more than {limits.BODY_BYTES_MAX} bytes")

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


def _too_large(what: str) -> Problem:
    return Problem(413, f"the body has {what}; at most {limits.BODY_BYTES_MAX} are taken: cut the post", committed="no", close=True)
