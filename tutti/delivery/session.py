"""Session: how a producer opens an epoch at one gateway after another, and how it detects a silent gateway.

The module is sans-I/O: the caller passes in messages and the time, and sends the messages in `outbox`. The table below is the state
machine; NOTES.md has the theory of operation and the failure cases.
"""

from __future__ import annotations

import abc
import collections
import enum
from math import inf
from typing import NamedTuple

import msgspec

from tutti import limits
from tutti.data import client_protocol
from tutti.data.frames.frame import Buffer
from tutti.data.gateway_states import CUT_OFF
from tutti.data.names import is_nameless
from tutti.errors import ConfigError, NotAllowed, Refused, TuttiError, Unavailable, invariant

CLIENT = "tutti-python"
US = 1e6
_SILENCE_MIN = limits.SILENCE_US_MIN / US
_SILENCE_MAX = limits.SILENCE_US_MAX / US
_RETRY_MIN = limits.RETRY_US_MIN / US
_RETRY_MAX = limits.RETRY_US_MAX / US
#: Codes of requests that no gateway allows the client.
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
    STRANGER = "stranger"  # the gateway does not know the session
    OPENED = "opened"
    EPOCH_OVER = "epoch over"
    END = "end"


#: The state machine; an absent transition is illegal.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.OFFLINE, Event.CONNECTED): State.GREETING,
    (State.OFFLINE, Event.LOST): State.OFFLINE,
    (State.OFFLINE, Event.EPOCH_OVER): State.OFFLINE,
    (State.OFFLINE, Event.END): State.ENDED,
    (State.GREETING, Event.WELCOMED): State.OPENING,
    (State.GREETING, Event.STRANGER): State.GREETING,
    (State.GREETING, Event.EPOCH_OVER): State.GREETING,
    (State.GREETING, Event.LOST): State.OFFLINE,
    (State.GREETING, Event.END): State.ENDED,
    (State.OPENING, Event.WELCOMED): State.OPENING,
    (State.OPENING, Event.STRANGER): State.GREETING,
    (State.OPENING, Event.OPENED): State.OPEN,
    (State.OPENING, Event.EPOCH_OVER): State.OPENING,
    (State.OPENING, Event.LOST): State.OFFLINE,
    (State.OPENING, Event.END): State.ENDED,
    (State.OPEN, Event.WELCOMED): State.OPEN,
    (State.OPEN, Event.STRANGER): State.GREETING,
    (State.OPEN, Event.EPOCH_OVER): State.OPENING,
    (State.OPEN, Event.LOST): State.OFFLINE,
    (State.OPEN, Event.END): State.ENDED,
    (State.ENDED, Event.LOST): State.ENDED,
    (State.ENDED, Event.END): State.ENDED,
}


class Identity(NamedTuple):
    """The producer's name, the id of this instance (16 random bytes), and the id of its session (16 random bytes)."""

    name: str
    instance: bytes
    session: bytes


class Session(abc.ABC):
    """The session of one producer with its gateways, up to an open epoch. Called by one thread."""

    def __init__(self, identity: Identity) -> None:
        """Create a session that is offline and has no epoch."""
        self.identity = identity
        self.state = State.OFFLINE
        self.outbox: collections.deque[list[Buffer]] = collections.deque()
        self.welcome: client_protocol.Welcome | None = None
        self.drop = ""  # why the connection must be dropped; the caller then tries the next address
        self.trouble = ""  # the last error, for messages
        self.number = 0  # producer number in the log, 0 before the first epoch
        self.epoch = 0  # epoch of the batches that were sent
        self.wanted = 1  # requested epoch; above `epoch` after the end of that epoch, until the next one opens
        self.topics: dict[str, int] = {}
        self.token = ""  # authentication token, for encrypted connections only
        self._starting = True  # a starting instance tries the next epoch when its epoch is taken; a running instance is fenced
        self._tries = 0
        self._log = ""
        self._request = 0
        self._epoch_request = 0
        self._topic_requests: dict[int, str] = {}
        self._ask_at: float | None = None
        self._retry_at = 0.0
        self._retry = _RETRY_MIN
        self._received_at = 0.0
        self._silence = _SILENCE_MIN
        self._hello_since: float | None = None

    @property
    def log(self) -> str:
        """The uuid (hex) of the producer's log; empty before the first Welcome."""
        return self._log

    @property
    def running(self) -> bool:
        """True if the requested epoch is the epoch of the sent batches."""
        return self.epoch == self.wanted

    # -- hooks of subclasses

    @abc.abstractmethod
    def resend(self) -> None:
        """Mark all sent batches as not sent."""

    @abc.abstractmethod
    def epoch_began(self, opened: client_protocol.EpochOpened, *, renumbered: bool) -> None:
        """Handle the begin of a new epoch.

        With `renumbered`, the producer has a new number, because the log had deleted its state.
        """

    @abc.abstractmethod
    def fenced(self, epoch: int) -> None:
        """Handle that another instance began that epoch."""

    @abc.abstractmethod
    def forgettable(self) -> bool:
        """Return True if no sent batch lacks an outcome, so that a producer whose state was deleted may start again."""

    @abc.abstractmethod
    def topic_refused(self, topic: str, error: TuttiError) -> None:
        """Handle that the gateway rejected a topic."""

    @abc.abstractmethod
    def end(self, error: TuttiError) -> None:
        """Deliver nothing more; fail everything with `error`."""

    # -- for the session connection

    @property
    def begun(self) -> bool:
        """True if a gateway accepted the producer before."""
        return self.epoch > 0

    @property
    def only(self) -> tuple[str, str]:
        """Name and url ("" if unknown) of the only gateway that the session may use; an empty name allows any gateway."""
        return "", ""

    @abc.abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Handle a message from the gateway.

        Raises:
            FormatError: the message does not belong to this protocol.
        """

    # -- connections

    def connected(self, now: float) -> None:
        """Start the handshake on a new connection."""
        self._transition(Event.CONNECTED)
        self._silence = _SILENCE_MIN
        self._retry_at = 0.0
        self._hello(now)

    def lost(self) -> None:
        """Handle the loss of the connection and of everything queued in it."""
        self._transition(Event.LOST)
        self.drop = ""
        self.outbox.clear()
        self._hello_since = None
        self._ask_at = None
        self._topic_requests.clear()
        self.resend()

    def _leave(self, reason: str) -> None:
        self.drop = self.trouble = reason

    # -- sending

    def _send_control(self, message: msgspec.Struct) -> None:
        self.outbox.append([client_protocol.encode_control(message)])

    def _hello(self, now: float) -> None:
        self._hello_since = self._received_at = now
        self._send_control(client_protocol.Hello(client_protocol.PROTOCOL, CLIENT, self.identity.session, self.token))

    def _request_epoch(self, now: float) -> None:
        self._ask_at = None
        self._received_at = now
        self._request += 1
        self._epoch_request = self._request
        self._send_control(client_protocol.OpenProducer(self._request, self.identity.name, self.identity.instance, self.wanted))

    def topic_number(self, topic: str) -> int:
        """Return the number of a topic. If it is unknown, request it and return 0."""
        number = self.topics.get(topic, 0)
        if not number and topic not in self._topic_requests.values():
            self._request += 1
            self._topic_requests[self._request] = topic
            self._send_control(client_protocol.OpenTopic(self._request, topic))
        return number

    def _request_next_epoch(self, now: float) -> None:
        """Handle the end of the epoch: request the next one, now or after the next Welcome."""
        self.wanted = self.epoch + 1
        self._transition(Event.EPOCH_OVER)
        if self.state is State.OPENING:
            self._request_epoch(now)

    # -- answers

    def _on_welcome(self, welcome: client_protocol.Welcome, now: float) -> None:
        asked, self._hello_since = self._hello_since is not None, None
        if self._log and welcome.log and welcome.log != self._log:
            text = (
                f"gateway {welcome.gateway} serves log {welcome.log} and this producer began on log {self._log}: "
                "the url names gateways of different groups, or the log was replaced; open a new Producer"
            )
            self.end(Refused(text, "log"))
            return
        self._log = welcome.log or self._log
        self.welcome = welcome
        if not asked:
            self._on_state_change(welcome)
            return
        was_open = self.state is State.OPEN
        self._transition(Event.WELCOMED)
        if was_open:  # the answer to a probe: the gateway is alive, and earlier answers may have been lost
            self._topic_requests.clear()
            self.resend()
        else:
            self._welcomed(welcome, now)

    def _on_state_change(self, welcome: client_protocol.Welcome) -> None:
        """Handle a Welcome that the gateway sent because its state or its group changed."""
        if welcome.state in CUT_OFF and len(welcome.gateways) > 1:
            self._leave(f"gateway {welcome.gateway} is {welcome.state}")

    def _welcomed(self, welcome: client_protocol.Welcome, now: float) -> None:
        """Continue after the Welcome that answers Hello."""
        self._request_epoch(now)

    def _on_epoch_opened(self, answer: client_protocol.EpochOpened, now: float) -> None:
        if answer.epoch != self.wanted or self.state is not State.OPENING:
            return  # an answer to an earlier or repeated request
        self._transition(Event.OPENED)
        self._topic_requests.clear()
        again = self.running and answer.producer == self.number
        renumbered = self.number not in (0, answer.producer)
        self.number = answer.producer
        if again:
            self.resend()
        else:
            self.epoch_began(answer, renumbered=renumbered)
        self.epoch = self.wanted
        self._starting, self._tries = False, 0

    def _on_epoch_fenced(self, answer: client_protocol.EpochFenced, now: float) -> None:
        if answer.epoch < self.wanted or self.state is not State.OPENING:
            return  # an answer to an earlier request
        self._tries += 1
        if not self._starting and not (self.forgettable() and is_nameless(self.identity.name)):
            self.fenced(answer.epoch)
        elif self._tries > limits.EPOCH_TRIES_MAX:
            text = (
                f"producer {self.identity.name!r} found its next epoch taken {self._tries} times, last at {answer.epoch}: "
                "several instances of it are starting at once; run one instance, or use different names"
            )
            self.end(Unavailable(text))
        else:
            self.wanted = max(self.wanted, answer.epoch) + 1
            self._request_epoch(now)

    def _on_topic_opened(self, answer: client_protocol.TopicOpened, now: float) -> None:
        topic = self._topic_requests.pop(answer.request, None)
        if topic is not None:
            self.topics[topic] = answer.topic

    def _on_denied(self, answer: client_protocol.Denied, now: float) -> None:
        if answer.code == "hello":
            if self._hello_since is None:
                self._transition(Event.STRANGER)
                self._hello(now)
            return
        topic = self._topic_requests.pop(answer.request, None)
        mine = answer.request == self._epoch_request and self.state is State.OPENING
        text = f"{answer.reason} ({answer.code})"
        if answer.code == "protocol":
            self.end(ConfigError(f"the gateway does not speak this client's protocol: {answer.reason}"))
        elif answer.code in NOT_ALLOWED and topic is None and (answer.request == 0 or mine):
            self.end(NotAllowed(f"producer {self.identity.name!r} is not authorised: {answer.reason}", answer.code))
        elif answer.request == 0:
            self._leave(text)
        elif answer.retry:
            self.trouble = text
            self._back_off(now, answer.code)
            if mine:
                self._ask_at = self._retry_at
        elif topic is not None:
            kind = NotAllowed if answer.code in NOT_ALLOWED else Refused
            self.topic_refused(topic, kind(f"topic {topic!r} was refused: {text}", answer.code, topic))
        elif mine:
            self.end(Refused(f"producer {self.identity.name!r} was refused: {text}", answer.code))

    def _repeat_requests(self, now: float) -> None:
        """Repeat all requests after a delay, because the log of the gateway may lag."""
        self.topics.clear()
        self._back_off(now, "unknown")
        if self.state is State.OPEN and self._hello_since is None:
            self._transition(Event.STRANGER)
            self._hello(now)

    def _back_off(self, now: float, code: str) -> None:
        """Queue everything again after a delay; change to another gateway if this one cannot order messages."""
        self._delay_sending(now)
        self.resend()
        if code in ELSEWHERE and self.welcome is not None and len(self.welcome.gateways) > 1:
            self._leave(f"gateway {self.welcome.gateway} cannot accept batches now: {self.trouble}")

    def _delay_sending(self, now: float) -> None:
        """Send nothing for a delay, which doubles until batches get outcomes."""
        if now >= self._retry_at:
            self._retry_at = now + self._retry
            self._retry = min(2 * self._retry, _RETRY_MAX)

    # -- time

    @abc.abstractmethod
    def waits_for_batches(self) -> bool:
        """Return True if batches that were sent on this connection have no answer."""

    def _waits(self) -> bool:
        """Return True if the gateway owes an answer."""
        if self.state is State.OPENING:
            return self._ask_at is None
        if self.state is State.OPEN:
            return self._hello_since is not None or bool(self._topic_requests) or self.waits_for_batches()
        return self.state is State.GREETING

    def _due(self) -> float:
        """Return the time of the next action; infinity if there is none."""
        due = self._answer_due() if self._waits() else inf
        if self._ask_at is not None and self.state is State.OPENING:
            due = min(due, self._ask_at)
        return due

    def _answer_due(self) -> float:
        if self.state is State.GREETING:
            return self._received_at + limits.ADDRESS_TIMEOUT_US / US
        return self._received_at + self._silence

    def _check_timeouts(self, now: float) -> None:
        """Do what is due: repeat requests, probe a silent gateway, drop a dead connection."""
        if self._ask_at is not None and self._ask_at <= now and self.state is State.OPENING:
            self._request_epoch(now)
        if now < self._answer_due() or self.drop or not self._waits():
            return
        if self._hello_since is not None:
            self._leave(f"connected, but got no answer for {now - self._hello_since:.1f} s")
            return
        self._silence = min(2 * self._silence, _SILENCE_MAX)
        self._hello(now)

    def _reset_timeouts(self) -> None:
        """Reset the timeouts after an outcome, which shows that the gateway works."""
        self._silence, self._retry = _SILENCE_MIN, _RETRY_MIN
        self.trouble = ""

    def _transition(self, turn: Event) -> None:
        after = TRANSITIONS.get((self.state, turn))
        invariant(after is not None, f"state {self.state.value!r} has no transition for {turn.value!r}")
        self.state = after or self.state
