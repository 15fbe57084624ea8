"""Tests of `tutti produce`: a run commits each record of its input once, after any earlier run and despite aborts."""

from __future__ import annotations

import io
import logging
from typing import Any, NamedTuple, NoReturn

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti import limits as common_limits
from tutti.errors import Aborted, Fenced, FormatError, Unavailable, Unknown
from tutti_gateway.cli.main import main
from tutti_gateway.cli.records import sender
from tutti_gateway.cli.records.inputs import Chunk
from tutti_gateway.cli.records.sender import InputChanged, Report, Sender
from tutti_gateway.core import limits


@pytest.mark.parametrize(("runs", "more"), [(8, ""), (9, " and 1 range more"), (11, " and 3 ranges more")])
def test_of_many_committed_ranges_the_first_are_listed(runs: int, more: str) -> None:
    said = sender._ranges_text([(number * 10, number * 10 + 1) for number in range(1, runs + 1)])
    assert said == "records 10-11, 20-21, 30-31, 40-41, 50-51, 60-61, 70-71, 80-81" + (more and f"{more} (--json has all)")


class Log:
    """What is committed: records, and each producer's last sequence and progress."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, bytes]] = []
        self.producers: dict[str | None, tuple[int, bytes]] = {}


class Promise(NamedTuple):
    outcome: int | Exception
    left: bool = True

    def result(self, timeout: float | None = None) -> int:
        assert timeout is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class FakeProducer:
    """Commits at once, except for batches whose index is in `aborts`: they and all later ones abort, until a resume."""

    def __init__(self, log: Log, aborts: set[int], name: str | None) -> None:
        self._log, self._aborts, self._name = log, aborts, name
        self._sent = 0
        self._stopped = False
        self.closed = False

    def resume(self) -> tuple[int, bytes]:
        self._stopped = False
        return self._log.producers.get(self._name, (0, b""))

    def send_batch(self, topic: str, batch: pa.RecordBatch, progress: bytes) -> Promise:
        self._sent += 1
        if self._sent in self._aborts:
            self._stopped = True
            return Promise(Aborted("no space"))
        if self._stopped:
            raise Aborted("resume first")
        offset = len(self._log.records)
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("key", "value")]
        self._log.records += [(topic, key, value) for key, value in zip(*columns, strict=True)]
        sequence = self._log.producers.get(self._name, (0, b""))[0]
        self._log.producers[self._name] = (sequence + batch.num_rows, progress)
        return Promise(offset)

    def close(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.closed = True


class House:
    """Runs of produce against one log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        self.aborts: set[int] = set()
        self.producers: list[FakeProducer] = []
        monkeypatch.setattr("tutti.producer.Producer", self._open)

    def _open(self, _url: str, producer: str | None) -> FakeProducer:
        self.producers.append(FakeProducer(self.log, self.aborts, producer))
        return self.producers[-1]

    def run(self, values: list[bytes], name: str | None = "p", settings: str = "", step: int = 3) -> Report:
        with Sender("tutti://x:1", "t", name, settings=settings, rate=None) as run:
            for at in range(0, len(values), step):
                assert run.send(Chunk(values[at : at + step], None)) == len(values[at : at + step])
            return run.finish()

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, value in self.log.records]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


def letters(count: int) -> list[bytes]:
    return [b"record %d" % number for number in range(1, count + 1)]


def test_everything_is_sent_in_order_and_the_offsets_are_reported(house: House) -> None:
    report = house.run(letters(10))
    assert house.values == letters(10)
    assert (report.records, report.skipped, report.first, report.last) == (10, 0, 0, 9)
    assert house.producers[0].closed


def test_keys_go_with_their_values(house: House) -> None:
    with Sender("tutti://x:1", "t", None, settings="", rate=None) as run:
        run.send(Chunk([b"a", b"b"], [b"k", None]))
        run.finish()
    assert house.log.records == [("t", b"k", b"a"), ("t", None, b"b")]


def test_a_second_run_commits_nothing_twice(house: House) -> None:
    house.run(letters(10))
    report = house.run(letters(10), step=4)
    assert house.values == letters(10)
    assert (report.records, report.skipped, report.first, report.last) == (0, 10, None, None)
    assert report.sentence() == "nothing to send to t; 10 were committed before"


@pytest.mark.parametrize("before", [1, 3, 7, 9])
def test_an_input_that_grew_is_sent_from_where_it_ended(house: House, before: int) -> None:
    house.run(letters(before))
    report = house.run(letters(10))
    assert house.values == letters(10)
    assert (report.records, report.skipped, report.first, report.last) == (10 - before, before, before, 9)


@pytest.mark.parametrize(
    ("values", "settings"),
    [([b"x", *letters(9)], ""), ([*letters(9), b"x"], ""), (letters(10), "other --key"), ([b"", *letters(10)], "")],
)
def test_a_changed_input_under_the_same_name_is_refused_before_anything_is_sent(
    house: House, values: list[bytes], settings: str
) -> None:
    house.run(letters(10))
    with pytest.raises(InputChanged, match=r"does not begin with the 10 records that producer 'p' has committed"):
        house.run([*values, b"more"], settings=settings)
    assert house.values == letters(10)


def test_an_input_that_became_shorter_is_refused(house: House) -> None:
    house.run(letters(10))
    with pytest.raises(InputChanged, match=r"the input has 4 records, but 10 were committed earlier by producer 'p'"):
        house.run(letters(4))


@pytest.mark.parametrize("progress", [b"", b"\xff", b"[]", b'{"program":"other"}', b'{"program":"tutti produce","count":2}'])
def test_a_name_that_another_program_used_is_refused(house: House, progress: bytes) -> None:
    house.log.producers["p"] = (3, progress)
    with pytest.raises(InputChanged, match=r"producer 'p' has sent 3 records through another program than `tutti produce`"):
        house.run(letters(10))


@given(aborts=st.sets(st.integers(1, 12), max_size=8), count=st.integers(0, 30), step=st.integers(1, 7))
def test_aborts_lose_nothing_and_double_nothing(aborts: set[int], count: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        house = House(monkeypatch)
        house.aborts = aborts
        report = house.run(letters(count), step=step)
    assert house.values == letters(count)
    assert (report.records, report.first) == (count, 0 if count else None)


def test_aborts_without_end_end_the_run(house: House) -> None:
    house.aborts = set(range(1, 1000))
    with pytest.raises(Aborted):
        house.run(letters(10))


def test_another_failure_ends_the_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "send_batch", lambda *_, **__: Promise(Unknown("too late")))
    with pytest.raises(Unavailable, match="too late") as raised:
        house.run(letters(10))
    assert raised.value.exit_code == 3


def test_a_batch_that_no_gateway_accepts_before_its_deadline_ends_the_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the run does not wait for the deadline of the batch again and again, as after an abort by the group."""
    sent: list[object] = []

    def send_batch(*arguments: object, **_: object) -> Promise:
        sent.append(arguments)
        return Promise(Aborted("no gateway accepted it"), left=False)

    monkeypatch.setattr(FakeProducer, "send_batch", send_batch)
    with pytest.raises(Unavailable, match="no gateway accepted it") as raised:
        house.run(letters(1))
    assert raised.value.exit_code == 3
    assert len(sent) == 1


def test_outcomes_of_receipts_are_not_logged_twice(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.run(letters(1))
    log = logging.getLogger("tutti.client")
    log.warning("%s", Unknown("no gateway took it"))
    log.warning("%s", Aborted("no gateway accepted it"))
    log.warning("%s: %s", "tutti://x:1", "no gateway")
    assert caplog.messages == ["tutti://x:1: no gateway"]


class Broken(io.BytesIO):
    """An input that ends with an error after ten good lines of JSON."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(b"".join(b"%d\n" % number for number in range(10)))
        self._error = error

    def read1(self, size: int | None = -1) -> bytes:
        block = super().read1(4)
        if not block:
            raise self._error
        return block


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FormatError("line 11 is no JSON"), 1, "error: line 11 is no JSON\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError(5, "Input/output error"), 1, "error: input/output error\n"),
    ],
)
@pytest.mark.parametrize("name", [None, "p"])
def test_an_aborted_run_reports_its_commits(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
    name: str | None,
) -> None:
    options = ["produce", "--url", "tutti://x:1", "--topic", "t", "--format", "json", *(["--producer", name] if name else [])]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Broken(error)))
    assert main(options) == code
    out, err = capsys.readouterr()
    assert out == "first offset 0, last offset 9\n"
    mend = "correct the input and " if isinstance(error, FormatError) else ""  # as it is it ends the next run, too
    hint = f"{mend}run it again with the same --producer, which continues"
    hint = hint if name else f"another run sends them again: {mend}send only the rest"
    assert err.startswith(f"10 records committed to t before it stopped: {hint}")
    assert err.endswith(said)
    house.log.producers.pop(None, None)  # a run without a name is a producer of its own
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Broken(error)))
    assert main([*options, "--json"]) == code
    told = orjson.loads(capsys.readouterr().out)
    expected = (0, 10, None, None) if name else (10, 0, 10, 19)
    assert (told["records"], told["skipped"], told["first"], told["last"]) == expected
    assert (told["complete"], told["undecided"]) == (False, 0)


def test_a_run_reports_unknown_outcomes_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = FakeProducer.send_batch
    outcomes: list[Exception] = [Unknown("late"), Aborted("no"), Fenced("another"), TimeoutError()]

    def some(producer: FakeProducer, topic: str, batch: pa.RecordBatch, progress: bytes) -> Promise:
        return commit(producer, topic, batch, progress) if batch.num_rows == 1 else Promise(outcomes.pop())

    monkeypatch.setattr(FakeProducer, "send_batch", some)
    with Sender("tutti://x:1", "t", None, settings="", rate=None) as run:
        run.send(Chunk([b"a"], None))
        for count in range(2, 6):
            run.send(Chunk([b"x"] * count, None))
        report = run.stop_early(1.0)
    assert (report.records, report.first, report.last, report.undecided) == (1, 0, 0, 2 + 3 + 5)
    assert "1 record committed to t before it stopped; the outcome of 10 more is unknown: another run" in report.sentence()


def test_unsent_records_are_not_reported_as_unknown(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer was closed before: else it could leave after it was counted."""

    class Waiting(NamedTuple):
        producer: FakeProducer

        def result(self, timeout: float | None = None) -> int:
            raise Unknown("closed before it had an outcome") if self.producer.closed else TimeoutError

        @property
        def left(self) -> bool:
            return not self.producer.closed

    monkeypatch.setattr(FakeProducer, "send_batch", lambda producer, *_, **__: Waiting(producer))
    with Sender("tutti://x:1", "t", None, settings="", rate=None) as run:
        run.send(Chunk([b"a", b"b"], None))
        report = run.stop_early(0.0)
    assert (report.records, report.undecided) == (0, 0)
    assert report.sentence() == "0 records committed to t before it stopped: run it again"


def test_records_handed_to_the_producer_during_ctrl_c_are_reported_as_unknown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have left before the interpreter saw the signal, so a second send would commit them twice."""
    commit = FakeProducer.send_batch

    def struck(producer: FakeProducer, topic: str, batch: pa.RecordBatch, progress: bytes) -> Promise:
        promise = commit(producer, topic, batch, progress)
        if batch.num_rows == 2:
            raise KeyboardInterrupt
        return promise

    monkeypatch.setattr(FakeProducer, "send_batch", struck)
    with Sender("tutti://x:1", "t", None, settings="", rate=None) as run:
        run.send(Chunk([b"a"], None))
        with pytest.raises(KeyboardInterrupt):
            run.send(Chunk([b"b", b"c"], None))
        report = run.stop_early(1.0)
    assert (report.records, report.undecided, report.undecided_records) == (1, 2, [(2, 3)])


def test_records_that_the_producer_refused_are_reported_as_uncommitted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sender("tutti://x:1", "t", None, settings="", rate=None) as run:
        run.send(Chunk([b"a"], None))
        monkeypatch.setattr(FakeProducer, "send_batch", lambda *_, **__: fenced())
        with pytest.raises(Fenced):
            run.send(Chunk([b"b", b"c"], None))
        report = run.stop_early(1.0)
    assert (report.records, report.undecided, report.uncommitted_from) == (1, 0, 2)


def fenced() -> NoReturn:
    raise Fenced("another")


def test_a_refused_input_is_reported_once(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    house.log.producers["p"] = (3, b"")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    assert main(["produce", "--url", "tutti://x:1", "--topic", "t", "--producer", "p"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_batches_are_bounded_by_bytes_and_by_count(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    commit = FakeProducer.send_batch

    def measured(producer: FakeProducer, topic: str, batch: pa.RecordBatch, progress: bytes) -> Promise:
        sizes.append(batch.num_rows)
        assert len(progress) <= 256
        return commit(producer, topic, batch, progress)

    monkeypatch.setattr(FakeProducer, "send_batch", measured)
    monkeypatch.setattr(common_limits, "BATCH_BYTES", 10)
    monkeypatch.setattr(limits, "PRODUCE_RECORDS_MAX", 4)
    house.run([b"12345", b"12345", b"1", b"x" * 50, b"", b"", b"", b"", b"1"], step=9)
    assert sizes == [2, 1, 1, 4, 1]


def test_no_more_batches_are_held_than_allowed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCE_BATCHES_MAX", 2)
    with Sender("tutti://x:1", "t", "p", settings="", rate=None) as run:
        for value in letters(10):
            run.send(Chunk([value], None))
            assert len(run._in_flight) <= 2
        assert run.finish().last == 9


def test_a_rate_is_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda wait: now.__setitem__(0, now[0] + wait))
    with Sender("tutti://x:1", "t", "p", settings="", rate=100) as run:
        run.send(Chunk(letters(50), None))
        assert now[0] == pytest.approx(100.45)
        run.finish()
    assert house.values == letters(50)


def test_a_resumed_run_counts_the_records_that_it_skips(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.run(letters(4))
    monkeypatch.setattr(FakeProducer, "send_batch", lambda *_, **__: Promise(Unknown("late")))
    with Sender("tutti://x:1", "t", "p", settings="", rate=None) as run:
        run.send(Chunk(letters(4), None))
        assert run.stop_early(1.0).uncommitted_from == 5
    with Sender("tutti://x:1", "t", "p", settings="", rate=None) as run:
        run.send(Chunk(letters(6), None))
        report = run.stop_early(1.0)
    assert (report.undecided_records, report.uncommitted_from) == ([(5, 6)], 7)
