"""The pump: the one thread of a producer, which owns its connections: the delivery's, and those of the lanes once it has some."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref

from gateway.client.channel import Channel
from gateway.client.credentials import Credentials
from gateway.client.delivery import Delivery
from gateway.client.feed import Feed, nobody
from gateway.client.lanes import Lanes
from gateway.client.link import wait_any
from gateway.client.receipt import bringer
from gateway.client.route import Route
from gateway.client.session import Session, State
from gateway.client.spool.spooler import Spooler
from gateway.client.url import Address
from gateway.core import limits
from gateway.errors import TuttiError, Unknown

LOG = logging.getLogger("tutti.client")
US = 1e6
_POLL_S = limits.POLL_US_MAX / US


class Pump:
    """Runs a delivery over one connection at a time, to one address after another, and lanes beside it."""

    def __init__(self, delivery: Delivery, addresses: list[Address], credentials: Credentials | None = None) -> None:
        """Prepare; `start` begins."""
        self.delivery = delivery
        self._credentials = credentials
        self.lanes: Lanes | None = None
        self.spooler: Spooler | None = None
        self.pid = os.getpid()
        self._addresses = addresses
        self._asleep = False
        self._stopping = False
        self._released = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not when the thread ends, as somebody may be about to write to it; nor at the interpreter's end, which has work for it.
        weakref.finalize(self, os.close, self._wake_fd).atexit = False
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._first = Channel(delivery, Route(addresses), self._wake_fd, credentials)
        self._channels: dict[Session, Channel] = {delivery: self._first}
        self._thread = threading.Thread(target=self._run, name=f"tutti-{delivery.identity.name}", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        if self.spooler is not None:
            self.spooler.start()
        self._thread.start()

    def carry(self, lanes: Lanes) -> None:
        """Run these lanes from now on, too. Any thread."""
        lanes.feed.wake = self.wake
        self.lanes = lanes
        self.wake()

    def wake(self) -> None:
        """Make the thread look, if it sleeps. Any thread, with or without the feed's lock."""
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """End the thread; what has no outcome fails, and what a spool has stays there."""
        self._stopping = True
        self.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limits.STOP_US_MAX / US)
        if self.spooler is not None:
            self.spooler.stop()

    def release(self) -> None:
        """Nobody holds the producer any more: end when everything has its outcome."""
        self._released = True
        self.wake()

    def orphan(self) -> None:
        """In a forked child: there is no thread here; tell whoever asks."""
        self._asleep = False
        self.delivery.feed.orphan(self.delivery.window, self.pid)
        if self.lanes is not None:
            self.lanes.feed.orphan(self.lanes.batches(), self.pid)
        self._unplug()

    def report(self, seconds: float) -> str:
        """What was met at each address, for an error."""
        told, trouble = self._first.route.told(), self.delivery.trouble
        last = f"; last answer: {trouble}" if trouble and trouble not in told else ""
        return f"no gateway let producer {self.delivery.identity.name!r} in within {seconds:g} s: {told}{last}"

    @property
    def route(self) -> Route:
        """The gateways that may be turned to."""
        return self._first.route

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """Where records come from."""
        return (self.delivery.feed,) if self.lanes is None else (self.delivery.feed, self.lanes.feed)

    def undelivered(self) -> int:
        """Records without an outcome."""
        return sum(feed.undelivered() for feed in self.feeds)

    def flush(self, timeout: float | None) -> int:
        """Wait until all records have an outcome, up to `timeout` seconds; how many still have none.

        Raises:
            UsageError: called in `on_delivery`, or in a signal handler whose thread is in here.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        feeds = self.feeds
        for feed in feeds[1:]:
            feed.flush(0.0)  # they do not wait for the first one's
        return sum(feed.flush(None if deadline is None else max(0.0, deadline - time.monotonic())) for feed in feeds)

    # -- the thread

    def _run(self) -> None:
        bringer.here = True
        try:
            while not self._over():
                self._turn(time.monotonic())
        except BaseException as error:  # whatever it was, nobody else tells those who wait
            LOG.exception("the I/O thread of producer %s ended", self.delivery.identity.name)
            self._end(Unknown(f"the producer's I/O thread ended by a fault of its own: {error!r}"))
        finally:
            for channel in self._channels.values():
                channel.close()
            self._asleep = False
            self._stopping = True
            self._unplug()

    def _unplug(self) -> None:
        for feed in self.feeds:
            feed.wake = nobody  # no circle is left: the descriptor goes with the last who holds the producer

    def _over(self) -> bool:
        delivery = self.delivery
        if delivery.state is State.ENDED:
            self._end(delivery.feed.stopped or Unknown("the producer ended"))
            return True
        if self._stopping or (self._released and not self.undelivered()):
            for channel in self._channels.values():
                channel.bye()
            self._end(Unknown("the producer was closed before the record had an outcome"))
            return True
        return False

    def _end(self, error: TuttiError) -> None:
        if self.delivery.state is not State.ENDED:
            self.delivery.end(error)
        if self.lanes is not None:
            self.lanes.end(error)

    def _turn(self, now: float) -> None:
        feed, lanes = self.delivery.feed, self.lanes
        feed.cork()
        for channel in self._channels.values():
            channel.hear(now)
        feed.uncork()
        self.delivery.work(now)
        if lanes is not None and self.delivery.state is not State.ENDED:
            lanes.feed.cork()
            lanes.work(now)
            lanes.feed.uncork()
            self._follow(lanes)
        for channel in self._channels.values():
            channel.speak(now)
        if self.delivery.state is State.ENDED:
            return
        self._asleep = True
        self._sleep(self._timeout(time.monotonic()))
        self._asleep = False

    def _follow(self, lanes: Lanes) -> None:
        """One channel for each lane that there is now."""
        self._first.peeks = False  # the lanes do not wait for that
        for session in [session for session in self._channels if session is not self.delivery and session not in lanes.lanes]:
            self._channels.pop(session).bye()
        for lane in lanes.lanes:
            if lane not in self._channels:
                waiting = {
                    address for channel in self._channels.values() if channel.session.only[0] for address in channel.addresses
                }
                route = Route(self._addresses, gateways=lanes.gateways, last=waiting)
                self._channels[lane] = channel = Channel(lane, route, self._wake_fd, self._credentials)
                channel.peeks = False

    def _sleep(self, timeout: float) -> None:
        link = self._first.link
        if len(self._channels) == 1 and link is not None:
            link.wait(timeout)  # which is told of each writing to the descriptor, and need not read it
            return
        links = [channel.link for channel in self._channels.values() if channel.link is not None]
        if links:
            woken = wait_any(links, self._wake_fd, timeout)
        else:
            woken = bool(self._poll.poll(int(timeout * 1000) + 1 if timeout > 0 else 0))
        if woken:
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                return  # read before: it was written once for two reasons

    def _timeout(self, now: float) -> float:
        """How long to sleep. What comes in from now on wakes: `_asleep` was set before."""
        delivery, lanes = self.delivery, self.lanes
        if self._stopping or delivery.feed.born_failed or (delivery.feed.queue and delivery.may_send(now)):
            return 0.0
        until = min(now + _POLL_S, delivery.next_time(now))
        if lanes is not None:
            if lanes.feed.born_failed or lanes.may_work(now):
                return 0.0
            until = min(until, lanes.next_time(now))
        for channel in self._channels.values():
            until = min(until, channel.due())
        return max(0.0, until - now)
