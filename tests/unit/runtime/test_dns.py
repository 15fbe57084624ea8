"""Tests of DNS lookups: a slow name server blocks nothing, and a name that becomes known later is found then."""

from __future__ import annotations

import threading
import time

import pytest

from tutti.runtime.dns import Resolver, look_up


def until(names: Resolver, host: str, wanted: str) -> None:
    deadline = time.monotonic() + 10
    while names.address(host) != wanted:
        assert time.monotonic() < deadline
        names.wait(0.1)
        names.drain()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.7"])
def test_a_numeric_address_needs_no_lookup(host: str) -> None:
    def never(_host: str) -> str:
        raise AssertionError

    names = Resolver(never)
    assert names.address(host) == host
    names.close()


def test_a_name_that_the_system_knows_is_there_at_once() -> None:
    assert look_up("localhost") in {"127.0.0.1", "::1"}
    names = Resolver(lambda host: f"of {host}")
    try:
        until(names, "lga", "of lga")
        assert names.error("lga") == ""
    finally:
        names.close()


def test_a_silent_name_server_blocks_no_caller() -> None:
    silent = threading.Event()
    names = Resolver(lambda _host: "10.0.0.1" if silent.wait(20) else "")
    try:
        began = time.monotonic()
        assert [names.address("lga") for _ in range(5)] == [""] * 5
        assert time.monotonic() - began < 5
        assert names.error("lga") == ""
        silent.set()
        until(names, "lga", "10.0.0.1")
    finally:
        silent.set()
        names.close()


def test_an_unknown_name_has_its_reason_until_it_is_known() -> None:
    known: list[str] = []

    def look(host: str) -> str:
        if not known:
            raise OSError(-2, f"Name {host} not known")
        return known[0]

    names = Resolver(look)
    try:
        deadline = time.monotonic() + 10
        while not names.error("lga"):
            assert names.address("lga") == ""
            assert time.monotonic() < deadline
            names.wait(0.1)
            names.drain()
        assert names.error("lga") == "name lga not known"
        known.append("10.0.0.1")
        until(names, "lga", "10.0.0.1")
        assert names.error("lga") == ""
        known[0] = "10.0.0.2"  # it moved
        until(names, "lga", "10.0.0.2")
    finally:
        names.close()


def test_a_label_that_no_name_has_is_not_known() -> None:
    names = Resolver()
    try:
        deadline = time.monotonic() + 10
        while not names.error("x" * 70 + ".example"):
            names.address("x" * 70 + ".example")
            assert time.monotonic() < deadline
            names.wait(0.1)
            names.drain()
    finally:
        names.close()


def test_a_lookup_without_an_answer_delays_no_other_and_reports_its_result_later() -> None:
    silent = threading.Event()

    def look(host: str) -> str:
        if host == "ewr":
            silent.wait(20)
        return f"of {host}"

    names = Resolver(look)
    try:
        assert (names.address("ewr"), names.address("lga")) == ("", "")
        names.wait(10)
        assert names.drain() == {"lga": "of lga"}
        assert (names.address("lga"), names.address("ewr")) == ("of lga", "")
        silent.set()
        until(names, "ewr", "of ewr")
    finally:
        silent.set()
        names.close()


def test_a_failed_lookup_is_reported_and_the_next_one_runs() -> None:
    faults = [MemoryError("no room")]

    def look(host: str) -> str:
        if faults:
            raise faults.pop()
        return f"of {host}"

    names = Resolver(look)
    try:
        assert names.address("lga") == ""
        names.wait(10)
        assert names.drain() == {"lga": ""}
        assert names.error("lga") == "no room"
        until(names, "lga", "of lga")
    finally:
        names.close()
