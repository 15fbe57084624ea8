"""Tests of streams in lockstep: which one decides, what the others copy, and which streams are not members."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.unit.streaming.fake_log import FakeLog
from tutti.errors import Unavailable, UsageError
from tutti_spark.common.options import ReadOptions
from tutti_spark.source import lockstep, stream
from tutti_spark.source.lockstep import Lockstep
from tutti_spark.source.stream import StreamReader

TERMS = {"cut": "tick:1"}


def told(offset: int) -> Callable[[], int]:
    return lambda: offset


def never() -> int:
    raise AssertionError("a follower decides nothing")


def joined(directory: Path, count: int, name: str = "x") -> list[Lockstep]:
    """Return the sources of one query, as Spark creates them: all of them join before the first offset is requested."""
    steps = [Lockstep(name, directory) for _ in range(count)]
    for step in steps:
        step.join()
    return steps


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "_JOIN_TIMEOUT_SECONDS", 0.05)


def test_the_one_asked_first_decides_and_the_others_end_where_it_does(tmp_path: Path) -> None:
    """Proves that the order of joining does not matter, and that a batch that does not exist yet exists for none."""
    last, second, leader = joined(tmp_path, 3)
    begin = 10
    for end in (10, 10, 25, 25, 40):
        assert leader.end(TERMS, "log", begin, told(end)) == end
        assert second.end(TERMS, "log", begin, never) == end
        assert last.end(TERMS, "log", begin, never) == end
        begin = end


def test_all_begin_at_the_start_of_the_first(tmp_path: Path) -> None:
    """Proves that "latest" is one position, although the log grows between two requests."""
    one, other = joined(tmp_path, 2)
    assert one.initial({"startingOffset": "latest"}, "log", told(7)) == 7
    assert other.initial({"startingOffset": "latest"}, "log", told(9)) == 7
    with pytest.raises(UsageError, match="differ in option 'startingOffset': latest and earliest"):
        other.initial({"startingOffset": "earliest"}, "log", told(0))
    with pytest.raises(UsageError, match="different logs, log and another"):
        other.initial({"startingOffset": "latest"}, "another", told(0))


@pytest.mark.parametrize(
    ("terms", "log", "begin", "message"),
    [
        (TERMS, "another", 10, "different logs, log and another"),
        (TERMS, "log", 12, "are at different offsets, 10 and 12 of log log.*checkpoint"),
        ({"cut": "tick:2"}, "log", 10, "differ in option 'cut': tick:1 and tick:2"),
        ({}, "log", 10, "differ in option 'cut': tick:1 and not given"),
        ({"cut": "tick:1", "maxRecordsPerTrigger": "1"}, "log", 10, "differ in option 'maxRecordsPerTrigger': not given and 1"),
    ],
)
def test_streams_that_cannot_move_together_are_refused(
    tmp_path: Path, terms: dict[str, str], log: str, begin: int, message: str
) -> None:
    leader, follower = joined(tmp_path, 2)
    leader.end(TERMS, "log", 10, told(20))
    with pytest.raises(UsageError, match=message):
        follower.end(terms, log, begin, never)


def test_names_keep_queries_apart(tmp_path: Path) -> None:
    one, other = joined(tmp_path, 1, "one"), joined(tmp_path, 1, "../other")
    assert one[0].end(TERMS, "log", 0, told(5)) == 5
    assert other[0].end(TERMS, "log", 0, told(9)) == 9
    assert {path.name for path in tmp_path.iterdir()} == {"tutti-lockstep"}


@pytest.mark.usefixtures("impatient")
def test_a_started_run_accepts_no_new_member(tmp_path: Path) -> None:
    """Proves that a second query of the name is refused, and that the first continues."""
    leader, follower = joined(tmp_path, 2)
    assert leader.end(TERMS, "log", 0, told(5)) == 5
    with pytest.raises(UsageError, match=r"another query.*lockstep name 'x'.*a name that no other running query has"):
        Lockstep("x", tmp_path).join()
    assert follower.end(TERMS, "log", 0, never) == 5
    assert leader.end(TERMS, "log", 5, told(8)) == follower.end(TERMS, "log", 5, never) == 8


def test_remains_of_an_earlier_run_are_ignored(tmp_path: Path) -> None:
    """Proves that a run starts from scratch when the members of the last are dead, however far it had come."""
    earlier = joined(tmp_path, 2)
    earlier[0].initial({}, "log", told(3))
    for begin in range(5):
        assert earlier[0].end(TERMS, "log", begin, told(begin + 1)) == earlier[1].end(TERMS, "log", begin, never)
    for step in earlier:
        step.leave()
    later = joined(tmp_path, 2)
    assert later[1].initial({}, "log", told(8)) == later[0].initial({}, "log", never) == 8
    assert later[1].end(TERMS, "log", 8, told(9)) == later[0].end(TERMS, "log", 8, never) == 9
    assert len(list(tmp_path.glob("tutti-lockstep/*/member-*"))) == 2


def test_a_member_of_a_run_that_never_began_does_not_matter(tmp_path: Path) -> None:
    """Proves that a process left by a failed start prevents no later start."""
    left = joined(tmp_path, 1)
    leader, follower = joined(tmp_path, 2)
    assert leader.end(TERMS, "log", 0, told(5)) == follower.end(TERMS, "log", 0, never) == 5
    left[0].leave()


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_killed_is_no_member(tmp_path: Path) -> None:
    """Proves that SIGKILL ends a membership, and nothing else does while the process lives."""
    code = (
        "import sys; from pathlib import Path; from tutti_spark.source.lockstep import Lockstep; "
        "s = Lockstep('x', Path(sys.argv[1])); "
        "s.join(); s.end({}, 'log', 0, lambda: 4); print('asked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        with pytest.raises(UsageError, match="another query"):
            Lockstep("x", tmp_path).join()
        os.kill(process.pid, signal.SIGKILL)
    (step,) = joined(tmp_path, 1)
    assert step.end(TERMS, "log", 0, told(6)) == 6


def test_a_start_interrupted_by_a_kill_is_repeated(tmp_path: Path) -> None:
    leader, follower = joined(tmp_path, 2)
    leader.end(TERMS, "log", 0, told(5))
    (state,) = tmp_path.glob("tutti-lockstep/*/state")
    state.write_text(state.read_text()[:20])
    with pytest.raises(Unavailable, match="is incomplete"):
        follower.end(TERMS, "log", 0, never)
    (step,) = joined(tmp_path, 1)
    assert step.end(TERMS, "log", 0, told(6)) == 6


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a state which is half in its place is not taken for one that a kill cut short."""
    leader, follower = joined(tmp_path, 2)
    leader.end(TERMS, "log", 0, told(5))
    (state,) = tmp_path.glob("tutti-lockstep/*/state")
    whole = state.read_text()
    asked, ends = threading.Event(), list[int]()
    flock, pread = fcntl.flock, os.pread

    def flock_told(file: int, kind: int) -> None:
        asked.set()
        flock(file, kind)

    def pread_told(*what: int) -> bytes:
        found = pread(*what)
        asked.set()
        return found

    with state.open("r+") as writer:
        flock(writer, fcntl.LOCK_EX)
        state.write_text(whole[:20])
        monkeypatch.setattr(fcntl, "flock", flock_told)
        monkeypatch.setattr(os, "pread", pread_told)
        asking = threading.Thread(target=lambda: ends.append(follower.end(TERMS, "log", 0, never)))
        asking.start()
        assert asked.wait(30)
        state.write_text(whole)
    asking.join(30)
    assert ends == [5]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(st.sampled_from([0, 1]), min_size=8, max_size=40), grows=st.lists(st.integers(0, 3), min_size=40, max_size=40)
)
def test_two_queries_of_one_name_never_come_to_different_ends(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], grows: list[int]
) -> None:
    """Proves that however two queries that began at once are asked, the streams of each end at one place, or it is refused."""
    directory = tmp_path_factory.mktemp("both")
    first, second = joined(directory, 2), joined(directory, 2)
    queries = [Queried(first), Queried(second)]
    available = 0
    for turn, grow in zip(order, grows, strict=False):
        available += grow
        queries[turn].ask(available)
    for query in queries:
        for end in query.ends:
            assert len(set(end)) == 1
    for step in (*first, *second):
        step.leave()


class Queried:
    """One query of two sources, which are asked in turns; after a refusal it is at its end."""

    def __init__(self, steps: list[Lockstep]) -> None:
        self._turns = self._take(steps)
        self._available = 0
        self.ends: list[list[int]] = []

    def ask(self, available: int) -> None:
        """The next question, with the log so far."""
        self._available = available
        next(self._turns, None)

    def _take(self, steps: list[Lockstep]) -> Iterator[None]:
        begin = 0
        while True:
            batch: list[int] = []
            for step in steps:
                try:
                    batch.append(step.end(TERMS, "log", begin, lambda: self._available))
                except UsageError:
                    return
                yield
            self.ends.append(batch)
            begin = batch[0]


def test_readers_in_lockstep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proves that a reader whose gateway is ahead ends where the leader does, and one whose gateway lags waits for it."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    logs = {"tutti://ahead:1": FakeLog(100), "tutti://leads:1": FakeLog(90)}
    monkeypatch.setattr(stream, "source_of", lambda options: logs[options.gateways])
    readers = [StreamReader(ReadOptions(gateways=url, start="latest", lockstep="pair", records_max=5)) for url in sorted(logs)]
    try:
        limit = ReadMaxRows(5)
        assert [reader.getDefaultReadLimit() for reader in readers] == [limit, limit]
        ahead, leads = readers
        start = leads.initialOffset()
        assert start == ahead.initialOffset() == {"log": "log-1", "offset": 90, "from": 90}
        assert leads.latestOffset(start, limit) is start
        assert ahead.latestOffset(start, limit) is start
        logs["tutti://leads:1"].set(103)
        ends = [start]
        while ends[-1]["offset"] < 103:
            threading.Timer(0.1, logs["tutti://ahead:1"].set, [103]).start()  # it is behind at the last two
            end = leads.latestOffset(ends[-1], limit)
            assert ahead.latestOffset(ends[-1], limit) == end
            ends += [end] if end != ends[-1] else []
        assert [end["offset"] for end in ends] == [90, 95, 100, 103]
    finally:
        for reader in readers:
            reader.stop()


def test_without_spark_there_is_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    with pytest.raises(UsageError, match=r"lockstep.*SPARK_LOCAL_DIRS"):
        Lockstep("x").join()
