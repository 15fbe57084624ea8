"""Properties of the fast path in the request handler: one batch of a client has equal events, answers and counts on both paths."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fast_paths.test_submits import batch, changed
from tests.unit.node.driver_harness import Documents
from tests.unit.node.fakes import LOG
from tutti.data.client_protocol import SUBMIT, SUBMIT_UNORDERED, Answer, Status, encode_control, encode_submit
from tutti.data.frames.frame import Frame
from tutti.data.log_state import Topic
from tutti.security.tokens import FULL_ACCESS, Access
from tutti_gateway.core.protocol import codec
from tutti_gateway.node.clients import request_handler
from tutti_gateway.node.clients.authorization import Authorizer
from tutti_gateway.node.clients.control_requests import PendingFences, PendingReadIndexes
from tutti_gateway.node.clients.port import Message
from tutti_gateway.node.clients.quotas import Quotas
from tutti_gateway.node.clients.request_handler import RequestHandler
from tutti_gateway.node.clients.sessions import Sessions
from tutti_gateway.node.common.counters import GatewayCounters

NOW_US = 10_000_000
SESSIONS = 4
FEED = Access("feed", "feed", ("flights",))
LIMITED = FEED._replace(name="limited", records_per_s=20)


class Answers:
    """Keeps the replies to each session or connection."""

    def __init__(self) -> None:
        self.told: list[tuple[object, str]] = []

    def add(self, session: int, answers: Iterable[Answer]) -> None:
        self.told += [(session, repr(answer)) for answer in answers]

    def add_one(self, session: int, answer: msgspec.Struct) -> None:
        self.told.append((session, repr(answer)))

    def send_to(self, routing: bytes, answer: msgspec.Struct) -> None:
        self.told.append((routing, repr(answer)))


class Tokens:
    """Counts the rejected batches."""

    def __init__(self) -> None:
        self.rejected: list[tuple[str, int]] = []

    def count(self, code: str, number: int = 1) -> None:
        self.rejected.append((code, number))


class Side:
    """A request handler with sessions of which some may write to a topic, have opened an epoch, or have a quota."""

    def __init__(self, seed: int, *, authorizes: bool) -> None:
        chance = Random(seed)
        self.sessions, self.answers, self.tokens, self.counters = Sessions(SESSIONS), Answers(), Tokens(), GatewayCounters()
        self.quotas = Quotas(self.sessions)
        for number in range(SESSIONS):
            session, _ = self.sessions.hello(b"%d" % number, b"%d" % number, "client", NOW_US)
            assert session is not None
            session.access = chance.choice((FEED, LIMITED)) if authorizes else FULL_ACCESS
            session.form = chance.choice((b"", SUBMIT, SUBMIT, SUBMIT_UNORDERED))
            session.producers = chance.choice((set(), {1}, {1, 2**64 - 1}, {1, 2**64 - 1}))
            session.topics = chance.choice((set(), {1}, {1}))
        replies: Any = self.answers
        tokens: Any = self.tokens
        nothing: Any = None
        authorizer = Authorizer(tokens, nothing, lambda _: None, lambda: {1: Topic("flights"), 2: Topic("delays")})
        self.handler = RequestHandler(
            self.sessions,
            replies,
            PendingFences(bytes(16)),
            PendingReadIndexes(),
            Documents,
            self.counters,
            LOG,
            self.quotas,
            authorizer if authorizes else None,
        )

    def receive(self, messages: list[Message]) -> list[bytes]:
        return [codec.encode(event) for event in self.handler.receive(messages, NOW_US)]

    def state(self) -> tuple[object, ...]:
        sessions = [(one.number, one.form, one.topics, one.requests) for one in self.sessions.all()]
        self.counters.frames_alone = 0  # counts the fast path itself
        return sessions, self.answers.told, self.tokens.rejected, self.counters.to_dict(), self.quotas.to_dict(NOW_US)


def submitted(chance: Random, frames: list[Frame]) -> list[bytes]:
    parts = [bytes(part) for part in encode_submit(frames, unordered=chance.random() < 0.1)]
    if chance.random() < 0.1:
        parts[0] = changed(parts[0], chance)
    if chance.random() < 0.15:
        parts.append(b"another part")
    return parts


def message(chance: Random) -> Message:
    routing = b"%d" % chance.randrange(SESSIONS + 1)  # the last one has no session
    if chance.random() < 0.1:
        parts = [encode_control(Status(chance.randrange(5)))]
    else:
        frames = [batch(chance) for _ in range(chance.choice((1, 1, 1, 1, 2)))]
        for frame in frames:
            frame.topic = chance.choice((1, 1, 1, 2, 3))
        parts = submitted(chance, frames)
    return Message(routing, list(parts), sum(map(len, parts)))


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=80)
def test_messages_have_the_same_events_answers_and_counts_without_the_fast_path(seed: int, authorizes: bool) -> None:
    chance = Random(seed)
    fast, general = (Side(seed, authorizes=authorizes) for _ in range(2))
    for _ in range(3):
        messages = [message(chance) for _ in range(chance.randint(1, 8))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(request_handler, "decode_lone_submit", lambda _: None)
            wanted = general.receive(messages)
        assert fast.receive(messages) == wanted
        assert fast.state() == general.state()
