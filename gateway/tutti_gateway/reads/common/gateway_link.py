"""Link to this process's gateway: requests the status over the status socket, and commits offsets over the client port."""

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
from tutti.data.status_messages import CONFIRMED, DAMAGED, LANE_DAMAGED, PACKED, READ_INDEX, REFUSED, TOKEN_BYTES
from tutti.errors import Unavailable
from tutti.io.admin import AdminClient
from tutti_gateway.core import limits

US = 1_000_000
UNKNOWN = "unknown"


class StatusSocket:
    """Client of the gateway's status socket, with any number of requests at a time. Thread-safe.

    A thread receives the answers, which arrive in any order, because confirming a frontier takes longer than sending the status.
    """

    def __init__(self, fd: int) -> None:
        """Use the socket with the file descriptor `fd`."""
        self._socket = socket.socket(fileno=fd)
        self._waiting: dict[bytes, SimpleQueue[bytes]] = {}
        self._closed = False
        # Closing a descriptor does not wake a thread that polls it (Linux), so an eventfd ends the receiving thread.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._receive, name="status-socket", daemon=True)
        self._thread.start()

    def request(self, word: bytes, wait_us: int) -> bytes:
        """Send a request and return its answer.

        Args:
            word: keyword that selects the kind of request; empty to request the status.
            wait_us: longest wait for the answer, us.

        Raises:
            TimeoutError: no answer arrived in time.
            Unavailable: the gateway has ended.
            OSError: the send buffer of the socket is full.
        """
        token = os.urandom(TOKEN_BYTES)
        answers = self._waiting[token] = SimpleQueue()
        try:
            # `_closed` is read after the registration, because the receiver sets `_closed` before it ends all waits.
            if self._closed:
                raise Unavailable("the gateway has ended")
            # A hanging gateway does not empty the socket, so a blocking send could outlast `wait_us`.
            self._socket.send(word + token, socket.MSG_DONTWAIT)
            answer = answers.get(timeout=wait_us / US)
        except Empty:
            raise TimeoutError from None
        finally:
            del self._waiting[token]
        if not answer:
            raise Unavailable("the gateway has ended")
        return answer

    def send(self, word: bytes) -> bool:
        """Send a message that has no answer; return False if the socket is full or the gateway has ended. Does not wait."""
        try:
            self._socket.send(word, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Stop receiving, without shutting the socket down, because the next reads process uses the same socket."""
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
                # Linux may report a socket as readable although `recv` would block (select(2), section BUGS).
                answer = self._socket.recv(limits.STATUS_BYTES_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                answer = b""
            if not answer:
                break
            waiting = self._waiting.get(answer[:TOKEN_BYTES])
            if waiting is not None:  # None if the request has timed out, or an earlier process sent it
                waiting.put(answer[TOKEN_BYTES:])
        self._closed = True
        for waiting in list(self._waiting.values()):
            waiting.put(b"")


class GatewayLink:
    """Requests to one gateway. Thread-safe.

    At most one request for the status is in progress, and all threads that need the status share the answer. At most one request to
    confirm the frontier is in progress, too.
    """

    def __init__(
        self,
        url: str,
        status_fd: int | None,
        credentials: Credentials | None = None,
        refused: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Create the link.

        Args:
            url: the client port of the gateway.
            status_fd: file descriptor of the status socket, or None, which leaves the status unknown.
            credentials: for the client port.
            refused: returns how many callers this process has rejected, by reason; each status request reports the increase.
        """
        self._refused = refused
        self._reported: Counter[str] = Counter()
        self._control = AdminClient(url, timeout=limits.STATUS_WAIT_US_MAX / US, credentials=credentials)
        self._socket = None if status_fd is None else StatusSocket(status_fd)
        self._status_lock = threading.Lock()
        self._status: dict[str, Any] | None = None
        # The monotonic clock begins near zero at the boot of the host, so zero could count as the time of a recent status.
        self._refreshed_at = -1e9
        self._confirming = threading.Condition()
        self._confirm_started = self._confirm_finished = 0  # requests to confirm the frontier; at most one is in progress
        self._confirmed = False  # the answer to the last completed request
        self.reason = "the status of the gateway is not known yet"

    def status(self) -> dict[str, Any] | None:
        """Return the status, at most a quarter of a second old. Return None and set `reason` if no answer arrives in a second."""
        with self._status_lock:
            if time.monotonic() - self._refreshed_at > limits.STATUS_FRESH_US / US:
                self._refresh()
            return self._status

    def state(self) -> str:
        """Return the last known state, or `unknown` if the gateway does not answer.

        At most one caller in each second waits for a new status; all other callers get the state of the last status.
        """
        return str(self._recent_status().get("state", UNKNOWN))

    def gateways(self) -> tuple[dict[str, str], list[str]]:
        """Return the gateways of the group (name to url) and the names of the silent ones, as fresh as `state`."""
        known = self._recent_status()
        return dict(known.get("gateways", {})), list(known.get("silent", ()))

    def peers(self) -> list[str]:
        """Return the urls of the other gateways that are not silent, as fresh as `state`."""
        known = self._recent_status()
        excluded = {known.get("gateway"), *known.get("silent", ())}
        return [url for name, url in known.get("gateways", {}).items() if name not in excluded]

    def halted(self) -> dict[str, str]:
        """Return for each lane the reason why it accepts no frames here, empty for a working lane; as fresh as `state`."""
        return {lane["lane"]: lane["halted"] for lane in self._recent_status().get("lanes", ())}

    def notify_scrubber(self, lane: str, position: int) -> None:
        """Report unreadable data to the gateway, which then scrubs and repairs the data. Does not wait.

        Args:
            lane: name of the lane; empty for the ordered log.
            position: position of the unreadable frame in the ordered log, 0 if unknown.
        """
        name = LaneName.parse(lane)
        if self._socket is not None and (position or name):
            word = DAMAGED + position.to_bytes(8, "little") if name is None else LANE_DAMAGED + name.incarnation[:8]
            self._socket.send(word)  # a lost report only delays the repair, because the scrubber checks the whole log anyway

    def confirm(self) -> bool:
        """Confirm the frontier with a majority of the group (ReadIndex, section 6.4 of Ongaro's dissertation on Raft).

        Return True if the frontier in the live page now covers everything committed before the call. Return False if the gateway
        cannot confirm that within `READ_INDEX_US_MAX`. Callers that arrive during a request share the next request.
        """
        deadline = time.monotonic() + limits.READ_INDEX_US_MAX / US
        with self._confirming:
            # A request in progress may have started before the caller's records were committed, so wait for the next request.
            number = self._confirm_started + 1
            self._confirming.wait_for(
                lambda: self._confirm_finished >= number or self._confirm_started == self._confirm_finished,
                limits.READ_INDEX_US_MAX / US,
            )
            if self._confirm_finished >= number:
                return self._confirmed
            # Only a timeout ends the wait above during another caller's request.
            left_us = int((deadline - time.monotonic()) * US)
            if left_us <= 0 or self._confirm_started != self._confirm_finished:
                return False
            self._confirm_started += 1
        confirmed = False
        try:
            if self._socket is not None:
                confirmed = self._socket.request(READ_INDEX, left_us) == CONFIRMED
        except (OSError, Unavailable):  # TimeoutError is an OSError
            pass
        finally:
            with self._confirming:
                # A failed request also counts as finished, so that its waiting callers fail without waiting for a timeout.
                self._confirm_finished, self._confirmed = self._confirm_started, confirmed
                self._confirming.notify_all()
        return confirmed

    def report_corruption(self, lane: str, position: int) -> bool:
        """Report unreadable data, as `notify_scrubber` does. Return True if the reader can use another gateway."""
        self.notify_scrubber(lane, position)
        return bool(self.peers())

    def _recent_status(self) -> dict[str, Any]:
        """Return the last known status, or an empty dict if the gateway does not answer."""
        stale = time.monotonic() - self._refreshed_at > limits.STATUS_WAIT_US_MAX / US
        if stale and self._status_lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._status_lock.release()
        return self._status or {}

    def save_offset(self, reader: str, offset: int, back: bool = False, is_cancelled: Callable[[], bool] = bool) -> None:
        """Commit the offset of a named reader, and return when the offset is committed.

        Args:
            reader: name of the reader.
            offset: the reader's next offset.
            back: whether the offset may be below the committed one.
            is_cancelled: returns True to end the wait.

        Raises:
            Unavailable: the gateway does not answer.
            Refused: the gateway refuses the request.
        """
        self._control.save_offset(reader, offset, back, is_cancelled)

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._control.close()
        if self._socket is not None:
            self._socket.close()

    def _refresh(self) -> None:
        try:
            self._status, self.reason = self._request_status(), ""
        except TimeoutError:
            self._status, self.reason = None, f"the gateway did not answer within {limits.STATUS_WAIT_US_MAX / US:g} s"
        except (OSError, Unavailable, msgspec.DecodeError, zlib.error) as error:
            self._status, self.reason = None, f"the gateway does not answer: {error}"
        # A failed request also counts as a refresh, so that behind a hanging gateway not every caller waits a full second.
        self._refreshed_at = time.monotonic()

    def _request_status(self) -> dict[str, Any]:
        """Request the status and return it."""
        if self._socket is None:
            raise Unavailable("this process was started without its status socket")
        # The gateway handles messages in order, so a status that follows the report already counts the rejected callers.
        self._report_refused(self._socket)
        return _decoded(self._socket.request(b"", limits.STATUS_WAIT_US_MAX))

    def _report_refused(self, gateway: StatusSocket) -> None:
        """Send the numbers of callers rejected since the last report."""
        for reason, times in dict(self._refused()).items():
            new = times - self._reported[reason]
            # If the socket is full, the increase stays unreported, and the next status request sends it.
            if new and gateway.send(REFUSED + new.to_bytes(8, "little") + reason.encode()):
                self._reported[reason] = times


def _decoded(status: bytes) -> dict[str, Any]:
    known: dict[str, Any] = msgspec.json.decode(zlib.decompress(status[1:]) if status[:1] == PACKED else status, type=dict)
    return known
