"""Tests of the producers for posts: a post commits once despite loss, repeats, takeovers and kills, with a log in memory."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.unit.connectors.http.fake_log import FakeLog, FakeProducer, a_post
from tutti.errors import Aborted, Fenced, NotAllowed, Refused, TuttiError, Unavailable, Unknown
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce import producers
from tutti_connect.http.produce.producers import Outcome, Producers

REPEATED = (Unknown, Fenced, Aborted, Unavailable)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FENCED_S_MIN", 0.0)
    monkeypatch.setattr(limits, "FENCED_S_MAX", 0.0)


def process(log: FakeLog) -> Producers:
    """A process of the connector over the log."""
    made = Producers("tutti://nobody:1", "web", log.search)
    made._create_producer = lambda name, _bytes: FakeProducer(log, name or "~random")  # type: ignore[assignment,return-value]  # in its place
    return made


def sent() -> None:
    """Do nothing: no caller waits for the send."""


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def refusal(made: Producers, first: int, *values: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        run(made.post_once("p", first, a_post(*values), sent))
    return caught.value


def test_a_repeat_is_answered_with_the_first_result_here_and_elsewhere() -> None:
    log = FakeLog()
    here, there = process(log), process(log)

    async def posts() -> list[Outcome]:
        return [
            await here.post_once("p", 1, a_post(b"1", b"2"), sent),
            await here.post_once("p", 3, a_post(b"3"), sent),
            await here.post_once("p", 1, a_post(b"1", b"2"), sent),
            await there.post_once("p", 1, a_post(b"1", b"2"), sent),
            await there.post_once("p", 3, a_post(b"3"), sent),
            await here.post_once("p", 3, a_post(b"3"), sent),
        ]

    assert run(posts()) == [(0, False), (2, False), (0, True), (0, True), (2, True), (2, True)]
    assert [row.value for row in log.rows] == [b"1", b"2", b"3"]


def test_conflicts_name_the_sequence_that_is_expected() -> None:
    log = FakeLog()
    made = process(log)
    run(made.post_once("p", 1, a_post(b"1", b"2", b"3"), sent))
    for first, values, kind in [(5, b"x", "gap"), (3, b"xy", "overlap"), (1, b"xyz", "different"), (2, b"x", "different")]:
        problem = refusal(made, first, *(bytes([value]) for value in values))
        assert (problem.status, problem.fields) == (409, {"conflict": kind, "expected": 4})
    assert len(log.rows) == 3


def test_a_conflict_is_reported_from_the_current_state_of_the_log() -> None:
    """Another process continued the producer, so what this one remembers is no reason to refuse the next post."""
    log = FakeLog()
    here, there = process(log), process(log)

    async def posts() -> Outcome:
        await here.post_once("p", 1, a_post(b"1"), sent)
        await there.post_once("p", 2, a_post(b"2"), sent)
        await there.post_once("p", 3, a_post(b"3"), sent)
        return await here.post_once("p", 4, a_post(b"4"), sent)

    assert run(posts()) == (3, False)
    assert refusal(there, 9, b"9").fields["expected"] == 5


def test_committed_posts_that_are_not_remembered_are_looked_up_and_compared() -> None:
    log = FakeLog()
    made = process(log)

    async def posts() -> None:
        for number in range(1, 40):
            await made.post_once("p", number, a_post(b"%d" % number), sent)

    run(posts())
    assert run(process(log).post_once("p", 2, a_post(b"2"), sent)) == (1, True)
    assert refusal(process(log), 2, b"x").fields["conflict"] == "different"
    other = process(log)
    other._search = lambda *_: None
    assert refusal(other, 2, b"2").fields == {"conflict": "unverified", "expected": 40}
    assert run(process(log).expected("p")) == 40


def test_a_deleted_producer_counts_from_one_in_every_process() -> None:
    """The same content again is not a repeat then, also in a process that has the producer open."""
    log = FakeLog()
    here = process(log)

    async def posts(made: Producers, *contents: bytes) -> list[Outcome]:
        return [await made.post_once("p", number, a_post(content), sent) for number, content in enumerate(contents, 1)]

    run(posts(here, b"1", b"2"))
    log.forget("web.p")
    assert run(posts(here, b"1", b"2", b"3")) == [(2, False), (3, False), (4, False)]
    log.forget("web.p")
    many = [b"%d" % number for number in range(100, 140)]
    assert run(posts(here, *many)) == [(5 + number, False) for number in range(40)]
    assert run(posts(process(log), *many)) == [(5 + number, True) for number in range(40)]
    assert refusal(process(log), 1, b"1").fields["conflict"] == "different"


def test_posts_without_a_name_are_not_compared() -> None:
    log = FakeLog()
    made = process(log)

    async def posts() -> list[Outcome]:
        return [await made.post(a_post(b"1"), sent), await made.post(a_post(b"1"), sent)]

    assert run(posts()) == [(0, False), (1, False)]


@pytest.mark.parametrize("error", [NotAllowed("the token was taken back"), Refused("the producer was forgotten", "forgotten")])
def test_the_end_of_a_producer_decides_nothing_about_posts_in_flight(error: TuttiError) -> None:
    log = FakeLog()
    made = process(log)

    async def posts() -> None:
        await made.post_once("p", 1, a_post(b"1"), sent)
        await made.post(a_post(b"2"), sent)
        log.ended = error
        with pytest.raises(Unknown):
            await made.post_once("p", 2, a_post(b"3"), sent)
        with pytest.raises(type(error)):  # nothing was sent
            await made.post_once("p", 2, a_post(b"3"), sent)
        with pytest.raises(Unknown):
            await made.post(a_post(b"4"), sent)
        with pytest.raises(type(error)):
            await made.post(a_post(b"5"), sent)
        log.ended = None
        assert await made.post_once("p", 2, a_post(b"3"), sent) == (2, True)
        assert await made.post(a_post(b"5"), sent) == (4, False), "another producer takes its place"

    run(posts())
    assert [row.value for row in log.rows] == [b"1", b"2", b"3", b"4", b"5"]


def test_while_no_gateway_answers_nothing_is_sent() -> None:
    log = FakeLog()
    log.away = True
    with pytest.raises(Unavailable):
        run(process(log).post_once("p", 1, a_post(b"1"), sent))
    with pytest.raises(Unavailable):
        run(process(log).post(a_post(b"1"), sent))
    assert log.rows == []


def test_producers_and_waiting_callers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_OPEN_MAX", 3)
    monkeypatch.setattr(limits, "WAITING_A_PRODUCER_MAX", 2)
    log = FakeLog()
    made = process(log)

    async def posts() -> list[Any]:
        for number in range(10):
            await made.post_once(f"p{number}", 1, a_post(b"1"), sent)
        assert made.opened == 3
        await made.post_once("p0", 2, a_post(b"2"), sent)  # opened again
        at_once = [made.post_once("p0", 3 + number, a_post(b"x"), sent) for number in range(4)]
        return await asyncio.gather(*at_once, return_exceptions=True)

    first, second, *others = run(posts())
    assert (first[1], second[1]) == (False, False)
    assert [error.status for error in others] == [429, 429]


class Client:
    """Posts one after another, at any process, and repeats what it does not know the outcome of; now and then without need."""

    def __init__(self, name: str, log: FakeLog, processes: list[Producers], seed: int) -> None:
        self.name, self.log, self.processes = name, log, processes
        self.chance = random.Random(seed)
        self.posts: list[tuple[int, tuple[bytes, ...]]] = []

    async def run(self, count: int) -> None:
        following = 1
        for _ in range(count):
            size = self.chance.randint(1, 3)
            values = tuple(b"%s-%d" % (self.name.encode(), following + number) for number in range(size))
            self.posts.append((following, values))
            await self.until_known(following, values)
            following += size
            if self.chance.random() < 0.3:
                await self.until_known(*self.chance.choice(self.posts), repeat=True)

    async def until_known(self, first: int, values: tuple[bytes, ...], repeat: bool = False) -> None:
        for _ in range(60):
            copies = 2 if self.chance.random() < 0.2 else 1
            answers = await asyncio.gather(*(self.post(first, values) for _ in range(copies)), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    assert isinstance(answer, (*REPEATED, asyncio.CancelledError)), answer
                else:
                    self.check(first, values, answer)
            outcomes = [answer for answer in answers if not isinstance(answer, BaseException)]
            if outcomes:
                assert not repeat or all(answer.repeated for answer in outcomes)
                return
        raise AssertionError("sixty times without an outcome")

    async def post(self, first: int, values: tuple[bytes, ...]) -> Outcome:
        number = self.chance.randrange(len(self.processes))
        task = asyncio.ensure_future(self.processes[number].post_once(self.name, first, a_post(*values), sent))
        if self.chance.random() < 0.1:  # it is killed in the middle
            for _ in range(self.chance.randint(0, 4)):
                await asyncio.sleep(0)
            task.cancel()
            self.processes[number] = process(self.log)
        return await task

    def check(self, first: int, values: tuple[bytes, ...], answer: Outcome) -> None:
        if answer.offset is not None:
            rows = self.log.rows[answer.offset : answer.offset + len(values)]
            assert [row.value for row in rows] == list(values)
            assert [row.sequence for row in rows] == list(range(first, first + len(values)))


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_in_the_log_once_and_in_order(seed: int) -> None:
    log = FakeLog(seed, trouble=0.3)

    async def all_of_them() -> list[Client]:
        processes = [process(log) for _ in range(3)]
        clients = [Client(f"p{number}", log, processes, seed * 10 + number) for number in range(3)]
        await asyncio.gather(*(client.run(15) for client in clients))
        return clients

    for client in run(all_of_them()):
        mine = [row for row in log.rows if row.producer == f"web.{client.name}"]
        assert [row.value for row in mine] == [value for _, values in client.posts for value in values]
        assert [row.sequence for row in mine] == list(range(1, len(mine) + 1))
    assert log.begun > 10
    assert producers.LOG.name == "tutti.http"
