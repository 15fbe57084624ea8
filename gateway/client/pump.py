"""The pump: the one thread of a producer that owns its connection. It moves messages between the link and the delivery."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref

from gateway.client.delivery import Delivery
from gateway.client.feed import nobody
from gateway.client.link import Link, News
from gateway.client.peek import misheard, peek
from gateway.client.receipt import bringer
from gateway.client.route import Route
from gateway.client.session import State
from gateway.client.url import Address
from gateway.core import limits
from gateway.data.frame import Buffer
from gateway.data.wire import Bye, encode_control
from gateway.errors import ConfigError, FormatError, Unknown

LOG = logging.getLogger("tutti.client")
US = 1e6
_GOODBYE_S = 0.2


class Pump:
    """Runs a delivery over one connection at a time, to one address after another."""

    def __init__(self, delivery: Delivery, addresses: list[Address]) -> None:
        """Prepare; `start` begins."""
        self.delivery = delivery
        self.pid = os.getpid()
        self._route = Route(addresses)
        self._link: Link | None = None
        self._connect_at = 0.0
        self._connect_until = 0.0
        self._wrong = False  # whether who is there is no client port, as what it said shows
        self._asleep = False
        self._stopping = False
        self._released = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not when the thread ends, as somebody may be about to write to it; nor at the interpreter's end, which has work for it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"tutti-{delivery.identity.name}", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look, if it sleeps. Any thread, with or without the feed's lock."""
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """End the thread; what has no outcome fails."""
        self._stopping = True
        self.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limits.STOP_US_MAX / US)

    def release(self) -> None:
        """Nobody holds the producer any more: end when everything has its outcome."""
        self._released = True
        self.wake()

    def orphan(self) -> None:
        """In a forked child: there is no thread here; tell whoever asks."""
        self._asleep = False
        self.delivery.feed.orphan(self.delivery.window, self.pid)
        self.delivery.feed.wake = nobody

    def report(self, seconds: float) -> str:
        """What was met at each address, for an error."""
        told, trouble = self._route.told(), self.delivery.trouble
        last = f"; last answer: {trouble}" if trouble and trouble not in told else ""
        return f"no gateway let producer {self.delivery.identity.name!r} in within {seconds:g} s: {told}{last}"

    # -- the thread

    def _run(self) -> None:
        bringer.here = True
        try:
            while not self._over():
                self._turn(time.monotonic())
        except BaseException as error:  # whatever it was, nobody else tells those who wait
            LOG.exception("the I/O thread of producer %s ended", self.delivery.identity.name)
            if self.delivery.state is not State.ENDED:
                self.delivery.end(Unknown(f"the producer's I/O thread ended by a fault of its own: {error!r}"))
        finally:
            if self._link is not None:
                self._link.close(_GOODBYE_S)
            self._asleep = False
            self._stopping = True
            self.delivery.feed.wake = nobody  # no circle is left: the descriptor goes with the last who holds the producer

    def _over(self) -> bool:
        delivery = self.delivery
        if delivery.state is State.ENDED:
            return True
        if self._stopping or (self._released and not delivery.feed.undelivered()):
            if self._link is not None and self._link.up:
                self._link.send([encode_control(Bye())])
            delivery.end(Unknown("the producer was closed before the record had an outcome"))
            return True
        return False

    def _turn(self, now: float) -> None:
        if self._link is None and self._connect_at <= now:
            self._connect(now)
        if self._link is not None:
            self._hear(self._link, now)
        self.delivery.work(now)
        if self._link is not None and self.delivery.drop:
            self._leave(self._link, self.delivery.drop, now)
        blocked = self._speak(self._link)
        if self.delivery.state is State.ENDED:
            return
        self._asleep = True
        self._sleep(self._timeout(time.monotonic()), blocked)
        self._asleep = False

    def _sleep(self, timeout: float, blocked: bool) -> None:
        link = self._link
        if link is not None:
            link.wait(timeout, blocked)
            woken = link.woken
        else:
            woken = bool(self._poll.poll(int(timeout * 1000) + 1 if timeout > 0 else 0))
        if woken:
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                return  # read before: it was written once for two reasons

    def _timeout(self, now: float) -> float:
        """How long to sleep. What comes in from now on wakes: `_asleep` was set before."""
        feed = self.delivery.feed
        if self._stopping or feed.born_failed:
            return 0.0
        if feed.queue and self.delivery.may_send(now):
            return 0.0
        until = now + limits.POLL_US_MAX / US
        due = self.delivery.next_time(now)
        if due is not None:
            until = min(until, due)
        if self._link is None:
            until = min(until, self._connect_at)
        elif not self._link.up:
            until = min(until, self._connect_until)
        return max(0.0, until - now)

    def _connect(self, now: float) -> None:
        self._connect_until = now + limits.ADDRESS_TIMEOUT_US / US
        self._link = Link(self._route.present, self._wake_fd)

    def _hear(self, link: Link, now: float) -> None:
        while link.has_news and (news := link.news()) is not None:
            if news is News.UP:
                self._route.met("connected")
                self.delivery.connected(now)
                continue
            if link.was_up:
                self._read(link, now)  # what came before the end
            reason = "connection refused" if news is News.REFUSED else "the connection was lost" if link.was_up else None
            self._leave(link, reason, now)
            return
        if not link.up and now >= self._connect_until:
            self._leave(link, None, now)
        elif link.readable:
            self._read(link, now)

    def _read(self, link: Link, now: float) -> None:
        data: Buffer | None = None
        try:
            for _ in range(limits.ANSWERS_A_TURN_MAX):
                data = link.receive()
                if data is None:
                    return
                self.delivery.receive(data, now)
        except FormatError as error:
            self.delivery.drop, self._wrong = misheard(data or b"", error, link.address)
            if not self._wrong:
                LOG.warning("%s: %s", link.address, error)

    def _speak(self, link: Link | None) -> bool:
        """Send what there is to say; whether the connection takes no more now."""
        outbox = self.delivery.outbox
        while outbox:
            if link is None or not link.up or not link.send(outbox[0]):
                return True
            outbox.popleft()
        return False

    def _leave(self, link: Link, reason: str | None, now: float) -> None:
        """Drop the connection; without a reason, look who is there."""
        link.close()
        self._link = None
        delivery, route = self.delivery, self._route
        if delivery.state is State.OPEN:
            route.went_well()
        delivery.lost()
        if delivery.welcome is not None:
            welcome = delivery.welcome
            route.learn(welcome.gateways, welcome.silent, welcome.state == "primary")
        wrong, self._wrong = self._wrong, False
        if reason is None:
            reason, wrong = peek(link.address)
        delivery.trouble = f"{link.address}: {reason}"
        self._connect_at = now + route.move_on(reason, wrong)
        if not delivery.epoch and route.only_wrong_ports() and delivery.state is not State.ENDED:
            delivery.end(ConfigError(route.told()))
