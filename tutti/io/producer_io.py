"""The pump: what moves the messages of one producer, by its connections: the delivery's, and those of the lanes once it has some.

An engine gives it its turns, in one of the process's I/O threads.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from math import inf

from tutti import limits
from tutti.batching.accumulator import Feed, nobody
from tutti.batching.receipt import bringer
from tutti.common.address import Address
from tutti.common.credentials import Credentials
from tutti.delivery.ordered import Delivery
from tutti.delivery.session import Session, State
from tutti.delivery.unordered import Lanes
from tutti.errors import TuttiError, Unavailable, Unknown
from tutti.io.endpoints import Route
from tutti.io.io_thread import Engine, run
from tutti.io.session_connection import Channel
from tutti.io.zmtp_connection import Link, no_link
from tutti.spool.disk_thread import Spooler

LOG = logging.getLogger("tutti.client")
US = 1e6
_POLL_S = limits.POLL_US_MAX / US


class Pump:
    """Runs a delivery over one connection at a time, to one address after another, and lanes beside it.

    Its `engine`, `due` and `alarm` are as in engine.py.
    """

    engine: Engine | None = None

    def __init__(self, delivery: Delivery, addresses: list[Address], credentials: Credentials | None = None) -> None:
        """Prepare; `start` begins."""
        self.delivery = delivery
        self._credentials = credentials
        self.lanes: Lanes | None = None
        self.spooler: Spooler | None = None
        self.pid = os.getpid()
        self.due = self.alarm = inf
        self._addresses = addresses
        self._asleep = False
        self._stirred = False  # somebody wanted a turn while one looked at what there is to send
        self._stopping = False
        self._released = False
        self._gone = threading.Event()
        self._first = Channel(delivery, Route(addresses), self, credentials)
        self._channels: dict[Session, Channel] = {delivery: self._first}

    def start(self) -> None:
        """Begin to connect.

        Raises:
            Unavailable: this process has no descriptor or no thread left.
        """
        try:
            if self.spooler is not None:
                self.spooler.start()
            run(self)
        except (OSError, RuntimeError) as error:
            self.delivery.feed.close()
            self.stop()
            what = no_link(error) if isinstance(error, OSError) else f"{error}: raise the limit of threads, or use fewer"
            raise Unavailable(what) from error

    def carry(self, lanes: Lanes) -> None:
        """Run these lanes from now on, too. Any thread."""
        lanes.feed.wake = self.wake
        self.lanes = lanes
        self.wake()

    def wake(self) -> None:
        """Have a turn soon, unless this is one. Any thread, with or without the feed's lock."""
        self._stirred = True  # before that is looked at: a turn that ends just now looks the other way round
        if self._asleep:
            self._asleep = False
            if self.engine is not None:
                self.engine.call(self)

    def stop(self) -> None:
        """End; what has no outcome fails, and what a spool has stays there."""
        self._stopping = True
        self.wake()
        if self.engine is not None and not getattr(bringer, "here", False):
            self._gone.wait(limits.STOP_US_MAX / US)
        if self.spooler is not None:
            self.spooler.stop()

    def release(self) -> None:
        """Nobody holds the producer any more: end when everything has its outcome."""
        self._released = True
        self.wake()

    def orphan(self) -> None:
        """In a forked child: there is no thread here; tell whoever asks."""
        self._asleep = False
        self._gone.set()
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
    def name(self) -> str:
        """The producer's."""
        return self.delivery.identity.name

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
            UsageError: called in `on_delivery`, in a signal handler whose thread is in here, or in a forked child.
        """
        if self.pid != os.getpid():
            self.delivery.feed.check()  # what the parent sent has no outcome here
        deadline = None if timeout is None else time.monotonic() + timeout
        feeds = self.feeds
        for feed in feeds[1:]:
            feed.flush(0.0)  # they do not wait for the first one's
        return sum(feed.flush(None if deadline is None else max(0.0, deadline - time.monotonic())) for feed in feeds)

    # -- in the engine's thread

    def watch(self, link: Link) -> None:
        """A link was made: what happens to it wants a turn."""
        if self.engine is not None:
            self.engine.watch(link, self)

    def leave(self, link: Link) -> None:
        """A link is about to be closed."""
        if self.engine is not None:
            self.engine.leave(link)

    def turn(self) -> bool:
        """Do what is to be done, without waiting; whether that was the last time."""
        self._asleep = False
        if self._over():
            self._close()
            return True
        self._work(time.monotonic())
        if self.delivery.state is State.ENDED:
            self.due = 0.0
            return False
        self._asleep = True  # what comes in from here on wakes
        self.due = 0.0 if self._stirred else self._next_time(time.monotonic())
        return False

    def broke(self, error: BaseException) -> None:
        """A turn ended by a fault: end, so that who waits is told."""
        self._end(Unknown(f"the producer's I/O thread ended by a fault of its own: {error!r}"))
        self._close()

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._asleep = False
        self._stopping = True
        self._unplug()
        self._gone.set()

    def _unplug(self) -> None:
        for feed in self.feeds:
            feed.wake = nobody  # no circle is left

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

    def _work(self, now: float) -> None:
        feed, lanes = self.delivery.feed, self.lanes
        feed.cork()
        for channel in self._channels.values():
            channel.hear(now)
        feed.uncork()
        self._stirred = False
        self.delivery.work(now)
        if lanes is not None and self.delivery.state is not State.ENDED:
            lanes.feed.cork()
            lanes.work(now)
            lanes.feed.uncork()
            self._follow(lanes)
        for channel in self._channels.values():
            channel.speak(now)

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
                self._channels[lane] = channel = Channel(lane, route, self, self._credentials)
                channel.peeks = False

    def _next_time(self, now: float) -> float:
        """When there is something to do though nothing comes; 0: at once."""
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
        return until
