"""Tests of authorization at the client port: a client that breaks every rule gets only the rights of its token."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tutti.data.client_protocol import (
    SUBMIT_UNORDERED,
    ChangeRoster,
    Fence,
    ForceRoster,
    Forget,
    Hello,
    Leave,
    Members,
    OpenProducer,
    OpenTopic,
    Producers,
    SaveOffset,
    Status,
    encode_control,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import Topic
from tutti.data.names import nameless_name
from tutti.errors import NotAllowed
from tutti.security.tokens import FULL_ACCESS, Access, Tokens, change_tokens, digest_of
from tutti.zmtp import z85
from tutti.zmtp.curve import new_key_pair
from tutti_gateway.node.clients.authorization import Authorizer
from tutti_gateway.node.clients.control_requests import ControlRequest
from tutti_gateway.node.clients.sessions import Session
from tutti_gateway.transport.keys import Keyring

GATEWAY, CLIENT = new_key_pair().public, new_key_pair().public
OWN_INSTANCES = (b"i" * 16, b"k" * 16)
OWN = tuple(map(nameless_name, OWN_INSTANCES))


class Keys(Keyring):
    def __init__(self) -> None:
        """There is no file."""

    def name_of(self, public: str) -> str:
        return "jfk" if public == z85.encode(GATEWAY) else ""

    def refresh(self) -> bool:
        return False


@pytest.fixture
def admission(tmp_path: Path) -> Authorizer:
    path = tmp_path / "tokens.toml"
    feed = Access("feed", digest_of("feed"), ("flights*",), producers=("jfk-*",))
    change_tokens(path, lambda known: known.update(feed=feed, reader=Access("reader", digest_of("reader"), read=("*",))))
    peers = {b"gateway": GATEWAY, b"client": CLIENT}
    topics = {1: Topic("flights"), 2: Topic("delays")}
    return Authorizer(Tokens(path), Keys(), peers.get, lambda: topics)


def session(admission: Authorizer, token: str) -> Session:
    made = Session(1, b"client", b"s" * 16, "test", 0)
    made.access = admission.access(b"client", Hello(1, "test", b"s" * 16, token))
    return made


def frame(producer: int, topic: int) -> Frame:
    return Frame(kind=Kind.BATCH, producer=producer, topic=topic, epoch=1, first_sequence=1, count=1, body=b"")


def test_a_gateway_is_known_by_its_key_and_a_client_by_its_token_where_nobody_else_hears_it(admission: Authorizer) -> None:
    assert admission.access(b"gateway", Hello(1, "reads", b"s" * 16)).admin
    assert session(admission, "feed").access.name == "feed"
    for routing, token in ((b"client", ""), (b"client", "x"), (b"in the clear", "feed")):
        with pytest.raises(NotAllowed) as error:
            admission.access(routing, Hello(1, "test", b"s" * 16, token))
        assert error.value.code == "token"
    assert admission.to_dict()["refused"] == {"missing": 1, "unknown": 1, "clear": 1}


def test_frames_of_unopened_producers_and_topics_are_refused(admission: Authorizer) -> None:
    """Of another's producer, of a topic that it did not ask for, and of one that nobody knows yet."""
    feed = session(admission, "feed")
    feed.producers.add(7)
    good, refused = admission.authorize(feed, [frame(7, 1), frame(8, 1), frame(7, 2), frame(7, 3), frame(7, 1)])
    assert [(one.producer, one.topic) for one in good] == [(7, 1), (7, 1)]
    assert [answer.code for answer in refused] == ["producer", "rights", "topic"]
    assert feed.topics == {1}
    feed.form = SUBMIT_UNORDERED
    good, refused = admission.authorize(feed, [frame(8, 1), frame(8, 2)])
    assert [one.topic for one in good] == [1]
    assert [answer.code for answer in refused] == ["rights"]
    assert admission.to_dict()["refused"] == {"rights": 2}, (
        "as metrics have it: what is a mistake and no lack of a right is not in it"
    )


def test_rights_that_become_fewer_hold_for_a_session_that_is_open(admission: Authorizer, tmp_path: Path) -> None:
    """What it opened counts no longer: it asks again, and is refused what it may not have now."""
    feed = session(admission, "feed")
    admission.check(feed, OpenProducer(1, "jfk-1", b"i" * 16, 1))
    feed.producers.add(7)
    assert admission.authorize(feed, [frame(7, 1)])[1] == []
    fewer = Access("feed", digest_of("feed"), ("flights*",), producers=("lga-*",))
    change_tokens(tmp_path / "tokens.toml", lambda known: known.update(feed=fewer))
    deadline = time.monotonic() + 10
    while feed.access != fewer and time.monotonic() < deadline:  # a file is read when it stood still from one look to the next
        assert admission.expired([feed]) == []
    assert [answer.code for answer in admission.authorize(feed, [frame(7, 1)])[1]] == ["producer"]
    with pytest.raises(NotAllowed, match="may not write as producer 'jfk-1'"):
        admission.check(feed, OpenProducer(1, "jfk-1", b"i" * 16, 1))


@pytest.mark.parametrize(
    ("token", "asked", "may"),
    [
        ("feed", OpenTopic(1, "flights-raw"), True),
        ("feed", OpenTopic(1, "delays"), False),
        ("reader", OpenTopic(1, "flights"), False),
        ("feed", OpenProducer(1, "jfk-1", b"i" * 16, 1), True),
        ("feed", OpenProducer(1, nameless_name(b"i" * 16), b"i" * 16, 1), True),
        ("feed", OpenProducer(1, nameless_name(b"i" * 16), b"j" * 16, 1), False),
        ("feed", OpenProducer(1, "lga-1", b"i" * 16, 1), False),
        ("reader", OpenProducer(1, "~4f", b"i" * 16, 1), False),
        ("reader", SaveOffset(1, "r", 1), True),
        ("feed", SaveOffset(1, "r", 1), False),
        ("feed", Forget(1, OWN, OWN_INSTANCES), True),
        ("feed", Forget(1, OWN), False),
        ("feed", Forget(1, OWN, OWN_INSTANCES[::-1]), False),
        ("feed", Forget(1, OWN, OWN_INSTANCES[:1]), False),
        ("feed", Forget(1, (*OWN, "jfk-1"), OWN_INSTANCES), False),
        ("reader", Forget(1, OWN, OWN_INSTANCES), False),
        ("feed", Fence(1, "jfk-1"), False),
        ("feed", Status(1), True),
        ("feed", Producers(1), False),
        ("feed", Members(1), False),
        ("feed", ChangeRoster(1, "remove", "jfk"), False),
        ("feed", ForceRoster(1, ("jfk",)), False),
        ("feed", Leave(1, "jfk"), False),
    ],
)
def test_each_request_needs_its_right(admission: Authorizer, token: str, asked: ControlRequest, may: bool) -> None:
    one = session(admission, token)
    if may:
        admission.check(one, asked)
    else:
        with pytest.raises(NotAllowed) as error:
            admission.check(one, asked)
        assert error.value.code == "rights"
    one.access = FULL_ACCESS
    admission.check(one, asked)


def test_a_hello_shows_no_token_where_it_is_printed() -> None:
    hello = Hello(1, "test", b"s" * 16, "tutti_secret")
    assert "tutti_secret" not in repr(hello) + str(hello)
    assert b"tutti_secret" in encode_control(hello)
