"""The gateway beside this process: how it is by a socket of their own, what is to be written by its client port as any tool."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from tutti.common.credentials import Credentials
from tutti.data.lane_name import LaneName
from tutti.data.status_socket import CONFIRMED, DAMAGED, LANE_DAMAGED, PACKED, READ_INDEX, REFUSED, TOKEN_BYTES
from tutti.errors import Unavailable
from tutti.io.admin import Control
from tutti_gateway.core import limits

US = 1_000_000
UNKNOWN = "unknown"


class StatusSocket:
    """Questions at the gateway's status socket, any number at a time. Thread-safe.

    A thread receives: answers come in any order, as the gateway confirms a frontier when its group does.
    """

    def __init__(self, fd: int) -> None:
        """Ask at `fd`."""
        self._socket = socket.socket(fileno=fd)
        self._waiting: dict[bytes, SimpleQueue[bytes]] = {}
        self._gone = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._receive, name="status-socket", daemon=True)
        self._thread.start()

    def ask(self, word: bytes, wait_us: int) -> bytes:
        """The answer to a question of this moment; `word` says what is asked, nothing the status.

        Raises:
            TimeoutError: there was none in time.
            Unavailable: the gateway is gone.
            OSError: the socket takes no more questions.
        """
        token = os.urandom(TOKEN_BYTES)
        answers = self._waiting[token] = SimpleQueue()
        try:
            if self._gone:
                raise Unavailable("it is gone")
            self._socket.send(word + token, socket.MSG_DONTWAIT)
            answer = answers.get(timeout=wait_us / US)
        except Empty:
            raise TimeoutError from None
        finally:
            del self._waiting[token]
        if not answer:
            raise Unavailable("it is gone")
        return answer

    def tell(self, word: bytes) -> bool:
        """Send a word that has no answer; return False if the socket is full or the gateway is gone. Waits for nothing."""
        try:
            self._socket.send(word, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Receive no more. The socket itself outlives this process: nothing is shut down."""
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        self._socket.close()
        os.close(self._wake_fd)

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        while self._wake_fd not in dict(poll.poll()):
            try:
                answer = self._socket.recv(limits.STATUS_BYTES_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                answer = b""
            if not answer:
                break
            waiting = self._waiting.get(answer[:TOKEN_BYTES])
            if waiting is not None:  # else the one who asked has given up, or was the process before this one
                waiting.put(answer[TOKEN_BYTES:])
        self._gone = True
        for waiting in list(self._waiting.values()):
            waiting.put(b"")


class GatewayLink:
    """Asks one gateway. Thread-safe; one question for the status is under way at a time, and serves all who ask in that moment.

    So does one question about the frontier.
    """

    def __init__(
        self,
        url: str,
        status_fd: int | None,
        credentials: Credentials | None = None,
        refused: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Ask the gateway whose client port is `url` and that answers at `status_fd`; without that its status stays unknown.

        It counts the callers that this process has `refused`, too, by reason: each question for the status brings the new ones.
        """
        self._refused = refused
        self._reported: Counter[str] = Counter()
        self._control = Control(url, timeout=limits.STATUS_WAIT_US_MAX / US, credentials=credentials)
        self._socket = None if status_fd is None else StatusSocket(status_fd)
        self._asking = threading.Lock()
        self._status: dict[str, Any] | None = None
        self._asked_at = -1e9
        self._indexing = threading.Condition()
        self._begun = self._ended = 0  # questions about the frontier; at most one is under way
        self._confirmed = False  # the answer to the last one that ended
        self.reason = "the gateway was not asked yet"

    def status(self) -> dict[str, Any] | None:
        """Its status, a quarter of a second old at most; None when it does not answer within a second (`reason` says more)."""
        with self._asking:
            if time.monotonic() - self._asked_at > limits.STATUS_FRESH_US / US:
                self._refresh()
            return self._status

    def state(self) -> str:
        """Its state as last heard, `unknown` if it does not answer. Waits only when nobody else asks, and at most once a second."""
        return str(self._lately().get("state", UNKNOWN))

    def gateways(self) -> tuple[dict[str, str], list[str]]:
        """The gateways of the group (name to url), and the names of those that this one does not hear, as of `state`."""
        told = self._lately()
        return dict(told.get("gateways", {})), list(told.get("silent", ()))

    def others(self) -> list[str]:
        """Urls of the other gateways of the group that this one hears, as of `state`."""
        told = self._lately()
        left_out = {told.get("gateway"), *told.get("silent", ())}
        return [url for name, url in told.get("gateways", {}).items() if name not in left_out]

    def halted(self) -> dict[str, str]:
        """Of each lane why nothing can follow in it here, as of `state`; empty for one that is well."""
        return {lane["lane"]: lane["halted"] for lane in self._lately().get("lanes", ())}

    def tell(self, lane: str, position: int) -> None:
        """Tell the gateway that a position (0: unknown) of the log, or something in a lane (its name; empty for the log), could not
        be read, so that it looks and mends. Waits for nothing.
        """
        name = LaneName.parse(lane)
        if self._socket is not None and (position or name):
            word = DAMAGED + position.to_bytes(8, "little") if name is None else LANE_DAMAGED + name.incarnation[:8]
            self._socket.tell(word)  # where that is lost, the gateway looks at all of the log in time

    def confirm(self) -> bool:
        """True if the gateway confirms with a majority of its group that the frontier in the live page, as it is when this returns,
        holds all that was committed when this was called. False if it cannot, or does not answer within `READ_INDEX_US_MAX`.

        Callers that come while a question is under way share the next one, which has the time that is left to the caller who asks.
        """
        deadline = time.monotonic() + limits.READ_INDEX_US_MAX / US
        with self._indexing:
            mine = self._begun + 1  # the first question that begins after this call
            self._indexing.wait_for(lambda: self._ended >= mine or self._begun == self._ended, limits.READ_INDEX_US_MAX / US)
            if self._ended >= mine:
                return self._confirmed
            left_us = int((deadline - time.monotonic()) * US)
            if left_us <= 0 or self._begun != self._ended:
                return False
            self._begun += 1
        confirmed = False
        try:
            if self._socket is not None:
                confirmed = self._socket.ask(READ_INDEX, left_us) == CONFIRMED
        except (OSError, Unavailable):  # no answer in time is one of them
            pass
        finally:
            with self._indexing:
                self._ended, self._confirmed = self._begun, confirmed
                self._indexing.notify_all()
        return confirmed

    def elsewhere(self, lane: str, position: int) -> bool:
        """Tell the gateway, as `tell`; whether there are others that who reads can go to."""
        self.tell(lane, position)
        return bool(self.others())

    def _lately(self) -> dict[str, Any]:
        """The status as last heard, empty if it does not answer."""
        stale = time.monotonic() - self._asked_at > limits.STATUS_WAIT_US_MAX / US
        if stale and self._asking.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._asking.release()
        return self._status or {}

    def save_offset(self, reader: str, offset: int, back: bool = False, given_up: Callable[[], bool] = bool) -> None:
        """Save a named reader's offset, a lower one than before only to go `back`; committed when this returns.

        Raises:
            Unavailable: the gateway does not answer.
            Refused: it would not do it.
        """
        self._control.save_offset(reader, offset, back, given_up)

    def close(self) -> None:
        """Say goodbye."""
        self._control.close()
        if self._socket is not None:
            self._socket.close()

    def _refresh(self) -> None:
        try:
            self._status, self.reason = self._ask(), ""
        except TimeoutError:
            self._status, self.reason = None, f"the gateway has not answered within {limits.STATUS_WAIT_US_MAX / US:g} s"
        except (OSError, Unavailable, msgspec.DecodeError, zlib.error) as error:
            self._status, self.reason = None, f"the gateway does not answer: {error}"
        self._asked_at = time.monotonic()

    def _ask(self) -> dict[str, Any]:
        """The answer to a question of this moment; what stands before it was for others."""
        if self._socket is None:
            raise Unavailable("this process was started without its status socket")
        self._report_refused(self._socket)
        return _told(self._socket.ask(b"", limits.STATUS_WAIT_US_MAX))

    def _report_refused(self, gateway: StatusSocket) -> None:
        """Send the counts that are new since the last time."""
        for reason, times in dict(self._refused()).items():
            new = times - self._reported[reason]
            if new and gateway.tell(REFUSED + new.to_bytes(8, "little") + reason.encode()):
                self._reported[reason] = times


def _told(status: bytes) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(zlib.decompress(status[1:]) if status[:1] == PACKED else status, type=dict)
    return told
