"""Tests of unordered records in signal handlers, in forked children, and at interpreter exit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import in_child
from tests.unit.client.fake_gateway import until
from tests.unit.client.two_gateways import Two, send, silent, unordered, values
from tutti.errors import UsageError
from tutti.producer import Producer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


def test_a_handler_that_struck_in_one_kind_is_refused_by_the_other(two: Two) -> None:
    """The thread that delivers outcomes needs both locks, so a wait in the handler would wait for itself."""
    with Producer(two.g1.url, producer="p") as p:
        send(p, 1)[0].result(10)
        lanes = p._io.lanes if p._io else None
        assert lanes is not None
        for held, ordering in ((p._accumulator, "unordered"), (lanes.accumulator, "total")):
            with held.lock:
                for call in (
                    lambda how=ordering: p.send("t", b"x", ordering=how, headers=[("a", b"b")]),
                    p.flush,
                    p.resume,
                    p.close,
                ):
                    with pytest.raises(UsageError, match="a signal handler called a producer"):
                        call()
        assert send(p, 2)[0].result(10) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_for_its_parents_lanes(two: Two) -> None:
    with Producer(two.g1.url, producer="p") as p:
        assert send(p, 1)[0].result(10) == 0
        two.g1.rule = silent(two.g1)
        waits = send(p, 2)[0]
        until(lambda: len(unordered(two.g1)) >= 2)

        def refused() -> str:
            for call in (lambda: send(p, 3), lambda: p.send("t", b"x", ordering="unordered"), lambda: waits.result(5), p.flush):
                with pytest.raises(UsageError, match="cannot be used in process"):
                    call()
            return f"{len(p)}"

        assert in_child(refused) == "0"
        two.g1.rule = None
        assert waits.result(20) == 1
    assert values(two.g1) == [1, 2]


def test_interpreter_exit_delivers_the_records_of_unclosed_producers(two: Two) -> None:
    text = "import sys, tutti\np = tutti.Producer(sys.argv[1])\nfor n in range(100): p.send('t', b'%d' % n, ordering='unordered')\n"
    done = subprocess.run(
        [sys.executable, "-c", text, two.g1.url], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert values(two.g1) == list(range(100))
