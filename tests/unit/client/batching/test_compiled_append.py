"""Tests of the C extension of `send`: it behaves as the Python code in every column, and passes all other cases to that code."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.batching import appender as taker
from tutti.batching.appender import Append, Appender, generator
from tutti.batching.encoder import RECORD_OVERHEAD_BYTES
from tutti.batching.receipt import Batch, Receipt, Record
from tutti.producer import Producer

swift: Any = taker.compiled


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Nothing here can be said without it."""
    assert swift is not None, "setup compiled nothing: apt-get install gcc python3-dev; rm .venv/.ready; make setup"


class Told:
    """An on_delivery."""

    def __call__(self, error: object, receipt: object) -> None:
        """Ignore the call."""


TOLD = Told()
ITEMS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.tuples(
            st.one_of(st.binary(max_size=20), st.none(), st.just(bytearray(b"x"))),
            st.one_of(st.none(), st.binary(max_size=20), st.just("k")),
            st.sampled_from([None, TOLD]),
        ),
    ),
    max_size=60,
)


def both(room: int) -> tuple[tuple[Batch, Appender, Append], tuple[Batch, Appender, Append]]:
    """One batch filled by the compiled code, and one by the Python code."""
    compiled, written = Batch("t", room, 0.0), Batch("t", room, 0.0)
    made, running = swift.Appender(compiled, Receipt), generator(written)
    next(running)
    return (compiled, made, made), (written, running, running.send)


def outcome(put: Append, item: object) -> object:
    """The result: the index of a receipt, None, or that the batch is closed."""
    try:
        receipt = put(item)
    except StopIteration:
        return "over"
    return receipt if receipt is None else receipt.index


def columns(batch: Batch) -> tuple[object, ...]:
    callbacks = None if batch.callbacks is None else [getattr(one, "index", one) for one in batch.callbacks]
    return batch.values, batch.keys, len(batch.times), callbacks, batch.stamps, batch.headers


@given(ITEMS, st.integers(0, 2000))
@settings(deadline=None)
def test_it_accepts_the_calls_that_the_python_code_accepts(items: list[Any], room: int) -> None:
    (compiled, made, put), (written, running, send) = both(room)
    for item in items:
        assert outcome(put, item) == outcome(send, item)
    made.close()
    running.close()
    assert columns(compiled) == columns(written)
    assert compiled.free_bytes == written.free_bytes
    assert all(isinstance(stamp, float) for stamp in compiled.times)


def test_the_time_is_the_clocks() -> None:
    (batch, _, put), (other, _, send) = both(1000)
    send(b"x")
    put(b"x")
    send(b"x")
    assert other.times[0] <= batch.times[0] <= other.times[1]


def test_a_closed_appender_appends_nothing_and_reports_the_remaining_space_once() -> None:
    batch = Batch("t", 1000, 0.0)
    made = swift.Appender(batch, Receipt)
    made(b"x")
    made.close()
    assert batch.free_bytes == 1000 - 1 - RECORD_OVERHEAD_BYTES
    batch.free_bytes -= 100  # a record goes in by the long way
    made.close()
    assert batch.free_bytes == 1000 - 1 - RECORD_OVERHEAD_BYTES - 100
    assert outcome(made, b"y") == "over"
    assert batch.values == [b"x"]


def test_it_appends_to_a_batch_that_has_records() -> None:
    batch = Batch("t", 1000, 0.0)
    first = swift.Appender(batch, Receipt)
    first((b"x", b"k", TOLD))
    first.close()
    second = swift.Appender(batch, Receipt)
    assert second(b"y").index == 1
    assert (batch.values, batch.keys) == ([b"x", b"y"], [b"k", None])
    assert batch.callbacks is not None
    assert batch.callbacks[1] is TOLD


class Stand:
    """A producer as `Send` sees one: by its takers."""

    def __init__(self, takers: Any) -> None:
        self._appenders = takers


def sender() -> tuple[type[Stand], list[tuple[tuple[object, ...], dict[str, object]]]]:
    """A class with a compiled `send`, and the calls that reached its Python function."""
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def send(self: Stand, *args: object, **named: object) -> str:
        calls.append((args, named))
        return "by the long way"

    kind = type("Sender", (Stand,), {"send": swift.Send(send)})
    return kind, calls


CALLS: list[tuple[Callable[[Any], object], bool]] = [
    (lambda p: p.send("t", b"v"), True),
    (lambda p: p.send("t", b"v", b"k"), True),
    (lambda p: p.send("t", b"v", None), True),
    (lambda p: p.send("t", b"v", key=b"k"), True),
    (lambda p: p.send("t", b"v", on_delivery=TOLD), True),
    (lambda p: p.send("t", b"v", b"k", on_delivery=TOLD), True),
    (lambda p: p.send("t", b"v", on_delivery=TOLD, key=b"k"), True),
    (lambda p: type(p).send(p, "t", b"v"), True),
    (lambda p: p.send(*("t", b"v"), on_delivery=None), True),
    (lambda p: p.send("other", b"v"), False),
    (lambda p: p.send(b"t", b"v"), False),
    (lambda p: p.send([], b"v"), False),
    (lambda p: p.send("t", "v"), False),
    (lambda p: p.send("t", None), False),
    (lambda p: p.send("t", bytearray(b"v")), False),
    (lambda p: p.send("t", b"v", "k"), False),
    (lambda p: p.send("t", b"v", on_delivery=3), False),
    (lambda p: p.send("t", b"v", None, None), False),
    (lambda p: p.send("t", b"v", timestamp=1), False),
    (lambda p: p.send("t", b"v", progress=b"1"), False),
    (lambda p: p.send("t", b"v", headers=()), False),
    (lambda p: p.send("t", b"v", ordering="total"), False),
    (lambda p: p.send("t", b"v", b"k", key=b"k"), False),
    (lambda p: p.send("t", value=b"v"), False),
    (lambda p: p.send(topic="t", value=b"v"), False),
    (lambda p: p.send("t"), False),
    (lambda p: p.send(), False),
    (lambda p: p.send("t", bytes(2000)), False),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_unsupported_calls_reach_the_python_code_unchanged(number: int) -> None:
    call, taken = CALLS[number]
    kind, calls = sender()
    batch = Batch("t", 1000, 0.0)
    found = call(kind({"t": swift.Appender(batch, Receipt)}))
    assert isinstance(found, Receipt) is taken
    assert len(batch.values) == taken
    assert len(calls) == (not taken)
    if not taken:
        direct: list[tuple[tuple[object, ...], dict[str, object]]] = []

        class Bare(Stand):
            def send(self, *args: object, **named: object) -> None:
                direct.append((args, named))

        call(Bare({}))
        assert calls == direct


@pytest.mark.parametrize("takers", [None, {}, {"t": generator}, {"t": None}, [], "t"])
def test_without_an_appender_of_its_own_type_it_appends_nothing(takers: Any) -> None:
    kind, calls = sender()
    if takers == {"t": generator}:
        running = generator(Batch("t", 1000, 0.0))
        next(running)
        takers = {"t": running.send}
    some: Any = kind(takers)
    assert some.send("t", b"v") == "by the long way"
    bare: Any = kind.__new__(kind)  # never opened
    assert bare.send("t", b"v") == "by the long way"
    assert len(calls) == 2


def test_an_error_of_the_python_code_is_raised() -> None:
    def send(self: Stand, topic: str) -> None:
        raise LookupError(topic)

    kind = type("Sender", (Stand,), {"send": swift.Send(send)})
    with pytest.raises(LookupError, match="x"):
        kind({}).send("x")
    with pytest.raises(TypeError, match="positional"):
        kind({}).send()


def test_inspection_of_send_shows_the_method() -> None:
    assert list(inspect.signature(Producer.send).parameters)[:4] == ["self", "topic", "value", "key"]
    assert (Producer.send.__doc__ or "").startswith("Send one record")
    assert Producer.send.__name__ == "send"


@pytest.mark.parametrize("wrong", [(), (1,), (Batch("t", 1, 0.0),), (object(), Receipt)])
def test_an_object_that_is_not_a_batch_makes_no_appender(wrong: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        swift.Appender(*wrong)
    with pytest.raises(TypeError):
        swift.Send()


def test_it_leaks_no_references() -> None:
    batch = Batch("t", 1 << 40, 0.0)
    made = swift.Appender(batch, Receipt)
    value, key, told = bytes(100), bytes(10), Told()
    before = sys.getrefcount(value), sys.getrefcount(key), sys.getrefcount(told)
    receipts = [made((value, key, told)) for _ in range(1000)]
    made.close()
    assert sys.getrefcount(value) == before[0] + 1000
    receipts.clear()
    batch.drop_columns()
    batch.callbacks = None
    del made
    gc.collect()
    assert (sys.getrefcount(value), sys.getrefcount(key), sys.getrefcount(told)) == before


def test_a_circle_through_it_is_collected() -> None:
    batch = Batch("t", 1000, 0.0)
    made = swift.Appender(batch, Receipt)
    made(b"x")
    batch.keys = [made]
    gone = weakref.ref(batch)
    del batch, made
    gc.collect()
    assert gone() is None


def test_finalizers_in_the_collector_may_send_too() -> None:
    """The collector may run where a list begins, and what it runs may use the same taker."""

    class Sends:
        def __init__(self, put: Append) -> None:
            self.circle = self
            self.put = put

        def __del__(self) -> None:
            self.put((b"from the collector", b"c", TOLD))

    for first in range(1, 12):
        batch = Batch("t", 1 << 20, 0.0)
        made = swift.Appender(batch, Receipt)
        made(b"before")
        Sends(made)
        threshold = gc.get_threshold()
        gc.set_threshold(first, 1, 1)
        try:
            receipt = made((b"with a key", b"k", TOLD))
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert receipt is not None
        assert batch.values[receipt.index] == b"with a key"
        assert batch.keys is not None
        assert batch.keys[receipt.index] == b"k"
        assert len(batch.values) == len(batch.keys) == len(batch.times) == 3


@pytest.mark.parametrize("closes", [True, False])
def test_finalizers_in_the_collector_may_use_the_slow_path(closes: bool) -> None:
    """It may close the taker and fill the same columns, before the one that began does."""

    class LongWay:
        def __init__(self, batch: Batch, taker: Any) -> None:
            self.circle = self
            self.batch = batch
            self.taker = taker

        def __del__(self) -> None:
            met.append(inside)
            if closes:
                self.taker.close()
                self.batch.append(Record(b"long", b"KEY", None, (), 7, 28), b"", TOLD)
            else:
                self.taker((b"long", b"KEY", TOLD))

    met: list[bool] = []
    for first in range(1, 12):
        batch = Batch("t", 1 << 20, 0.0)
        made = swift.Appender(batch, Receipt)
        made(b"before")
        LongWay(batch, made)
        threshold = gc.get_threshold()
        inside = True
        gc.set_threshold(first, 1, 1)
        try:
            outcome(made, (b"with a key", b"k", TOLD))
        finally:
            gc.set_threshold(*threshold)
        inside = False
        gc.collect()
        if not met.pop():
            continue
        met.append(True)
        at = batch.values.index(b"long")
        assert batch.keys is not None
        assert batch.keys[at] == b"KEY"
        assert batch.callbacks is not None
        assert at in [receipt.index for receipt in batch.callbacks[::2]]
        assert len(batch.values) == len(batch.keys) == len(batch.times)
    assert bool(met) is (sys.version_info < (3, 12)), "from 3.12 on the collector runs between instructions, and never in there"


def test_the_compiled_module_is_of_this_release(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swift.RECORD_OVERHEAD_BYTES == RECORD_OVERHEAD_BYTES
    found: Any = taker._load_extension()
    assert found is swift
    monkeypatch.setattr(swift, "FORM", swift.FORM + 1)
    assert taker._load_extension() is None
    monkeypatch.undo()
    monkeypatch.setenv("TUTTI_SWIFT", "0")
    assert taker._load_extension() is None
