"""Tests of the requests for the endpoints of other gateways: an error leaves out only the gateways that it concerns, and polling
continues.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest

from tutti.errors import DirectoryRefused, Unavailable
from tutti_gateway.core import limits
from tutti_gateway.reads.logs import peer_endpoints as others
from tutti_gateway.reads.logs.peer_endpoints import PeerCache

OWN, LGA = "grpc://jfk:7402", "grpc://lga:7402"


class House:
    """The gateway of this process, its log, and other gateways that can be asked."""

    def __init__(self) -> None:
        self.urls = ["tutti://ewr:7400", "tutti://lga:7400"]
        self.trouble: Exception | None = None

    def peers(self) -> list[str]:
        return self.urls

    @property
    def log(self) -> str:
        if self.trouble is not None:
            raise self.trouble
        return "log"


class Talk:
    """A connection to another gateway; there is no socket left for that to ewr."""

    def __init__(self, url: str, *_: object, **__: object) -> None:
        if "ewr" in url:
            raise Unavailable("no connection can be made: Too many open files; raise the limit of open files of this process")

    def welcome(self) -> Any:
        return SimpleNamespace(log="log", gateway="lga", reads=LGA, admin="http://lga:7403")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(others, "RequestClient", Talk)
    monkeypatch.setattr(limits, "LOCATIONS_FRESH_US", 0)
    return House()


def knows(house: House) -> PeerCache:
    found = PeerCache(house, house)
    found.own = OWN
    return found


def until_asked(found: PeerCache) -> None:
    for thread in threading.enumerate():
        if thread.name == "other-gateways":
            thread.join(10)


def test_only_a_gateway_that_cannot_be_asked_is_left_out(house: House) -> None:
    found = knows(house)
    assert found.locations() == [OWN, LGA]
    assert found.consoles() == {"lga": "http://lga:7403"}


def test_without_a_free_thread_the_next_caller_asks(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    found = knows(house)
    with monkeypatch.context() as none_left:
        none_left.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError):
            found.locations()
    found.locations()
    until_asked(found)
    assert found.locations() == [OWN, LGA]


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_unreadable_directory_is_reported_and_retried(house: House, caplog: pytest.LogCaptureFixture) -> None:
    found = knows(house)
    house.trouble = DirectoryRefused("data/jfk cannot be read")
    assert found.locations() == [OWN]
    assert caplog.messages[-1] == "the list of the other gateways is not available"
    house.trouble = None
    found.locations()
    until_asked(found)
    assert found.locations() == [OWN, LGA]
