"""Session: the control messages to and from one gateway at a time: handshake, epoch, topics, and detection of a silent gateway.

The module is sans-I/O: the caller passes in answers and the time, and sends the messages in `outbox`. The table `TRANSITIONS` is
the state machine. tutti/NOTES.md contains the rules and the failure cases. A `Sender` owns a session and decides what each answer
means for the batches.
"""

from __future__ import annotations

import collections
import enum
from math import inf
from typing import NamedTuple

import msgspec

from tutti import limits
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer
from tutti.delivery.window import Window
from tutti.errors import Refused, invariant

CLIENT = "tutti-python"
US = 1e6
_SILENCE_MIN = limits.SILENCE_US_MIN / US
_SILENCE_MAX = limits.SILENCE_US_MAX / US
_RETRY_MIN = limits.RETRY_US_MIN / US
_RETRY_MAX = limits.RETRY_US_MAX / US
#: Codes of refusals after which no gateway will accept the request.
NOT_ALLOWED = frozenset({"token", "rights"})
#: Codes of refusals after which another gateway may accept the request.
ELSEWHERE = frozenset({"not_primary", "leaving", "halted"})


class State(enum.Enum):
    """State of a producer's session with the gateway that it is connected to."""

    OFFLINE = "offline"
    GREETING = "greeting"  # Hello was sent
    OPENING = "opening"  # OpenProducer was sent
    OPEN = "open"
    ENDED = "ended"


class Event(enum.Enum):
    """Event of the state machine."""

    CONNECTED = "connected"
    LOST = "lost"
    WELCOMED = "welcomed"
    UNKNOWN = "unknown"  # the gateway does not know the session
    OPENED = "opened"
    EPOCH_ENDED = "epoch ended"
    END = "end"


#: The state machine: (state, event) -> next state. A missing entry is an illegal transition.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.OFFLINE, Event.CONNECTED): State.GREETING,
    (State.OFFLINE, Event.LOST): State.OFFLINE,
    (State.OFFLINE, Event.EPOCH_ENDED): State.OFFLINE,
    (State.OFFLINE, Event.END): State.ENDED,
    (State.GREETING, Event.WELCOMED): State.OPENING,
    (State.GREETING, Event.UNKNOWN): State.GREETING,
    (State.GREETING, Event.EPOCH_ENDED): State.GREETING,
    (State.GREETING, Event.LOST): State.OFFLINE,
    (State.GREETING, Event.END): State.ENDED,
    (State.OPENING, Event.WELCOMED): State.OPENING,
    (State.OPENING, Event.UNKNOWN): State.GREETING,
    (State.OPENING, Event.OPENED): State.OPEN,
    (State.OPENING, Event.EPOCH_ENDED): State.OPENING,
    (State.OPENING, Event.LOST): State.OFFLINE,
    (State.OPENING, Event.END): State.ENDED,
    (State.OPEN, Event.WELCOMED): State.OPEN,
    (State.OPEN, Event.UNKNOWN): State.GREETING,
    (State.OPEN, Event.EPOCH_ENDED): State.OPENING,
    (State.OPEN, Event.LOST): State.OFFLINE,
    (State.OPEN, Event.END): State.ENDED,
    (State.ENDED, Event.LOST): State.ENDED,
    (State.ENDED, Event.END): State.ENDED,
}


class Greeting(enum.Enum):
    """Why a gateway sent a Welcome."""

    FIRST = "first"  # answers the first Hello of a connection, or the Hello after the gateway did not know the session
    PROBED = "probed"  # answers a Hello that probed a silent gateway
    CHANGED = "changed"  # answers no Hello: the state or the group of the gateway changed


class Identity(NamedTuple):
    """The name of a producer, the id of its instance (16 random bytes), and the id of its session (16 random bytes)."""

    name: str
    instance: bytes
    session: bytes


class Session:
    """The session of one sender with one gateway at a time. Called by one thread."""

    def __init__(self, identity: Identity, window: Window) -> None:
        """Create an offline session without an epoch. When messages may have been lost, the session rewinds `window`."""
        self.identity = identity
        self.state = State.OFFLINE
        self.outbox: collections.deque[list[Buffer]] = collections.deque()
        self.welcome: client_protocol.Welcome | None = None
        self.log = ""  # uuid (hex) of the producer's log; empty before the first Welcome
        self.drop = ""  # the reason to drop the connection and try the next address; empty to keep the connection
        self.redirected = False  # True if `drop` is set because another gateway must serve the producer
        self.trouble = ""  # the last error, for messages
        self.number = 0  # producer number in the log, 0 before the first epoch
        self.epoch = 0  # epoch of the batches that were sent
        self.requested_epoch = 1  # latest epoch to request; higher than `epoch` until the requested epoch opens
        self.topics: dict[str, int] = {}
        self.refused_topics: set[str] = set()  # topics whose refusal is logged; an opened topic leaves the set
        self.token = ""  # authentication token, for encrypted connections only
        self.retry_at = 0.0  # no batch is sent before this time
        self.outcome_at = 0.0  # time of the last receipt
        self.held_from = 0  # `Welcome.held_from` of this connection; 0 again after an outcome
        self._window = window
        self._request = 0
        self._epoch_request = 0
        self._topic_requests: dict[int, str] = {}
        self._epoch_retry_at: float | None = None  # time at which to request the epoch again; None without a scheduled retry
        self._retry = _RETRY_MIN  # the next retry delay
        self.received_at = 0.0  # start of the silence timeout: a message has arrived, or the first unanswered batch was sent
        self._silence = _SILENCE_MIN  # the silence timeout
        self._hello_since: float | None = None  # time of the Hello that has no Welcome yet

    @property
    def running(self) -> bool:
        """True if the requested epoch is the epoch of the sent batches."""
        return self.epoch == self.requested_epoch

    # -- connections

    def connected(self, now: float) -> None:
        """Start the handshake on a new connection."""
        self.transition(Event.CONNECTED)
        self._silence = _SILENCE_MIN
        self.retry_at = 0.0
        self._hello(now)

    def lost(self) -> None:
        """Handle the loss of the connection and of everything queued in it."""
        self.transition(Event.LOST)
        self.drop, self.redirected = "", False
        self.held_from = 0
        self.outbox.clear()
        self._hello_since = None
        self._epoch_retry_at = None
        self._topic_requests.clear()
        self._window.rewind()

    def leave(self, reason: str, *, redirected: bool = True) -> None:
        """Ask the session connection to drop the connection and try the next address.

        `redirected` is False if the gateway does not answer. Otherwise another gateway must serve the producer.
        """
        self.drop = self.trouble = reason
        self.redirected = redirected

    # -- requests

    def _send_control(self, message: msgspec.Struct) -> None:
        self.outbox.append([client_protocol.encode_control(message)])

    def _hello(self, now: float) -> None:
        self._hello_since = self.received_at = now
        self._send_control(client_protocol.Hello(client_protocol.PROTOCOL, CLIENT, self.identity.session, self.token))

    def request_epoch(self, now: float) -> None:
        """Request `requested_epoch`."""
        self._epoch_retry_at = None
        self.received_at = now
        self._request += 1
        self._epoch_request = self._request
        identity = self.identity
        self._send_control(client_protocol.OpenProducer(self._request, identity.name, identity.instance, self.requested_epoch))

    def request_next_epoch(self, now: float) -> None:
        """Handle the end of the epoch: request the next one, now or after the next Welcome."""
        self.requested_epoch = self.epoch + 1
        self.transition(Event.EPOCH_ENDED)
        if self.state is State.OPENING:
            self.request_epoch(now)

    def topic_number(self, topic: str) -> int:
        """Return the number of a topic. Request an unknown number, and return 0 until the answer arrives."""
        number = self.topics.get(topic, 0)
        if not number and topic not in self._topic_requests.values():
            self._request += 1
            self._topic_requests[self._request] = topic
            self._send_control(client_protocol.OpenTopic(self._request, topic))
        return number

    def repeat_requests(self, now: float) -> None:
        """Send Hello, then repeat the epoch and topic requests, because the log of the gateway may lag. Delay the batches."""
        self.topics.clear()
        self.delay_sending(now)
        self._window.rewind()
        if self.state is State.OPEN and self._hello_since is None:
            # The Welcome that answers this Hello makes the sender repeat the other requests.
            self.transition(Event.UNKNOWN)
            self._hello(now)

    # -- answers

    def on_welcome(self, welcome: client_protocol.Welcome) -> Greeting:
        """Handle a Welcome, and return why the gateway sent it.

        Raises:
            Refused: the gateway serves a different log.
        """
        requested, self._hello_since = self._hello_since is not None, None
        if self.log and welcome.log and welcome.log != self.log:
            text = (
                f"gateway {welcome.gateway} serves log {welcome.log} and this producer began on log {self.log}: "
                "the url names gateways of different groups, or the log was replaced; open a new Producer"
            )
            raise Refused(text, "log")
        self.log = welcome.log or self.log
        self.welcome, self.held_from = welcome, welcome.held_from
        if not requested:
            return Greeting.CHANGED
        was_open = self.state is State.OPEN
        self.transition(Event.WELCOMED)
        if not was_open:
            return Greeting.FIRST
        # The gateway is alive, but its earlier answers may have been lost.
        self._topic_requests.clear()
        if self.held_from:
            # This Welcome follows all batches of this connection, so the gateway has received the batches from `held_from` on.
            self._window.rewind_below(self.held_from)
        else:
            self._window.rewind()
        return Greeting.PROBED

    def opened(self) -> None:
        """Record that the gateway accepts batches. Forget unanswered topic requests, so that the next batch repeats them."""
        self.transition(Event.OPENED)
        self._topic_requests.clear()

    def on_topic_opened(self, answer: client_protocol.TopicOpened) -> None:
        """Store the number of a topic."""
        topic = self._topic_requests.pop(answer.request, None)
        if topic is not None:
            self.topics[topic] = answer.topic
            self.refused_topics.discard(topic)

    def on_unknown(self, now: float) -> None:
        """Send Hello again, because the gateway does not know the session."""
        if self._hello_since is None:
            self.transition(Event.UNKNOWN)
            self._hello(now)

    def pop_topic_request(self, request: int) -> str | None:
        """Remove a topic request that the gateway denied, and return its topic."""
        return self._topic_requests.pop(request, None)

    def is_epoch_request(self, request: int) -> bool:
        """Return True if `request` is the latest epoch request and has no answer yet."""
        return request == self._epoch_request and self.state is State.OPENING

    def reset_timeouts(self, now: float) -> None:
        """Reset the timeouts after an outcome, which shows that the gateway works."""
        self.outcome_at, self.held_from = now, 0
        self._silence, self._retry = _SILENCE_MIN, _RETRY_MIN
        self.trouble = ""

    @property
    def throttled(self) -> str:
        """The quota for which the gateway holds batches, as text for messages; empty if the gateway holds none."""
        if not self.held_from or self.welcome is None:
            return ""
        quotas = (self.welcome.records_per_s, "records/s"), (self.welcome.bytes_per_s, "bytes/s")
        return f"throttled by the quota of its token ({', '.join(f'{value} {unit}' for value, unit in quotas if value)})"

    @property
    def cause(self) -> str:
        """The end of a message about a missed deadline: the last error or the quota; empty if neither is known."""
        return f"; last error: {self.trouble}" if self.trouble else f"; the producer is {self.throttled}" if self.held_from else ""

    # -- time

    @property
    def may_back_off_longer(self) -> bool:
        """True if the retry delay has not reached its maximum."""
        return self._retry < _RETRY_MAX

    def back_off(self, now: float, code: str) -> None:
        """Send all batches again after a delay. Change to another gateway if the refusal `code` is one of `ELSEWHERE`."""
        self.delay_sending(now)
        self._window.rewind()
        if code in ELSEWHERE and self.welcome is not None and len(self.welcome.gateways) > 1:
            self.leave(f"gateway {self.welcome.gateway} cannot accept batches now: {self.trouble}")

    def delay_sending(self, now: float) -> None:
        """Send no batch during a delay, which doubles each time until a batch gets an outcome."""
        if now >= self.retry_at:
            self.retry_at = now + self._retry
            self._retry = min(2 * self._retry, _RETRY_MAX)

    def delay_epoch_request(self) -> None:
        """Schedule the next epoch request for the end of the retry delay."""
        self._epoch_retry_at = self.retry_at

    def may_send(self, now: float) -> bool:
        """Return True if the gateway accepts batches now."""
        return self.state is State.OPEN and self.retry_at <= now and not self.drop

    def _awaits_answer(self) -> bool:
        """Return True if the session waits for an answer of the gateway."""
        if self.state is State.OPENING:
            return self._epoch_retry_at is None
        if self.state is State.OPEN:
            return self._hello_since is not None or bool(self._topic_requests) or self._window.awaits_answer
        return self.state is State.GREETING

    def due(self) -> float:
        """Return the time of the next action; infinity if no action is planned."""
        due = self._answer_due() if self._awaits_answer() else inf
        if self._epoch_retry_at is not None and self.state is State.OPENING:
            due = min(due, self._epoch_retry_at)
        return due

    def _answer_due(self) -> float:
        if self.state is State.GREETING:
            return self.received_at + limits.ADDRESS_TIMEOUT_US / US
        return self.received_at + self._silence

    def check_timeouts(self, now: float) -> None:
        """Perform the actions that are due: repeat requests, probe a silent gateway, drop a dead connection."""
        if self._epoch_retry_at is not None and self._epoch_retry_at <= now and self.state is State.OPENING:
            self.request_epoch(now)
        if now < self._answer_due() or self.drop or not self._awaits_answer():
            return
        if self._hello_since is not None:
            self.leave(f"connected, but got no answer for {now - self._hello_since:.1f} s", redirected=False)
            return
        # A busy gateway may also be silent, so probe it before dropping the connection, and double the timeout with each probe.
        self._silence = min(2 * self._silence, _SILENCE_MAX)
        self._hello(now)

    def transition(self, event: Event) -> None:
        """Change the state according to `TRANSITIONS`. An event without an entry is a defect of this client."""
        after = TRANSITIONS.get((self.state, event))
        invariant(after is not None, f"state {self.state.value!r} has no transition for {event.value!r}")
        self.state = after or self.state
