"""Tests of the session table: clients keep their number over reconnects, sessions are bounded, and only idle
clients are evicted.
"""

from tests.unit.node.fakes import token
from tutti_gateway.core import limits
from tutti_gateway.node.clients.sessions import Sessions


def test_a_client_that_connects_again_keeps_its_number() -> None:
    sessions = Sessions(10)
    mine = token()
    first, _ = sessions.hello(b"a", mine, "client", 0)
    again, gone = sessions.hello(b"b", mine, "client", 1)
    assert first is again
    assert gone == []
    assert sessions.on_message(b"a", 2) is None
    assert sessions.on_message(b"b", 2) is first
    assert len(sessions) == 1


def test_another_client_on_the_same_connection_replaces_the_first() -> None:
    sessions = Sessions(10)
    first, _ = sessions.hello(b"a", token(), "client", 0)
    second, gone = sessions.hello(b"a", token(), "client", 1)
    assert first is not None
    assert second is not None
    assert gone == [first]
    assert second.number != first.number
    assert sessions.get(first.number) is None


def test_a_full_table_evicts_only_idle_clients() -> None:
    sessions = Sessions(2)
    idle, _ = sessions.hello(b"a", token(), "idle", 0)
    busy, _ = sessions.hello(b"b", token(), "busy", 0)
    refused, gone = sessions.hello(b"c", token(), "third", limits.SESSION_EVICT_US // 2)
    assert refused is None
    assert gone == []
    sessions.on_message(b"b", limits.SESSION_EVICT_US)
    third, gone = sessions.hello(b"c", token(), "third", limits.SESSION_EVICT_US + 1)
    assert third is not None
    assert gone == [idle]
    assert busy is not None
    assert sessions.get(busy.number) is busy


def test_a_client_may_be_removed_twice() -> None:
    sessions = Sessions(2)
    session, _ = sessions.hello(b"a", token(), "client", 0)
    assert session is not None
    sessions.remove(session)
    sessions.remove(session)
    assert len(sessions) == 0


def test_silent_clients_are_found() -> None:
    sessions = Sessions(5)
    old, _ = sessions.hello(b"a", token(), "old", 0)
    sessions.hello(b"b", token(), "young", 100)
    assert sessions.idle(50) == [old]
    assert len(sessions.clear()) == 2
    assert len(sessions) == 0
