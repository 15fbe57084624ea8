"""Tests of a producer's wait for a query or a named reader: it ends when that has processed the record, not earlier, at any
gateway, and a timeout gives the reason.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.commands import tutti
from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer, Reader, Receipt, TooLarge, UsageError
from tutti.errors import TuttiError
from tutti.sources.query_progress import QueryProgress
from tutti.sources.query_wait import QueryWait

WAIT_S = 60.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path) as three:
        yield three


class Waiter(threading.Thread):
    """Waits in a thread of its own."""

    def __init__(self, wait: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._wait = wait
        self.passed: int | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.passed = self._wait()
        except (TuttiError, TimeoutError) as error:
            self.error = error


def test_each_record_is_waited_for_by_itself(gateway: GatewayProcess) -> None:
    """Proves that of many waiters those whose records are processed return, however their requests are combined."""
    with Producer(gateway.url) as p, QueryProgress(gateway.url) as query:
        receipts = [p.send("flights", b"%d" % number) for number in range(20)]
        first = receipts[0].result(WAIT_S)
        waiters = [Waiter(partial(receipt.processed_by, "each", WAIT_S)) for receipt in receipts]
        query.report("run", first + 10, name="each")
        wait_until(lambda: sum(waiter.passed is not None for waiter in waiters) == 10)
        assert [waiter.passed for waiter in waiters[:10]] == [first + 10] * 10
        query.report("run", first + 20, name="each")
        for waiter in waiters:
            waiter.join(WAIT_S)
        assert [waiter.passed for waiter in waiters[10:]] == [first + 20] * 10


def test_a_batch_is_processed_with_its_last_record(gateway: GatewayProcess) -> None:
    """Proves that one receipt for many records waits for all of them."""
    with Producer(gateway.url) as p, QueryProgress(gateway.url) as query:
        receipt = p.send_batch("flights", pa.record_batch({"value": pa.array([b"a", b"b", b"c"])}))
        first = receipt.result(WAIT_S)
        query.report("run", first + 2, name="whole")
        with pytest.raises(TimeoutError, match=f"it has processed the records below offset {first + 2}"):
            receipt.processed_by("whole", timeout=0.2)
        query.report("run", first + 3, name="whole")
        assert receipt.processed_by("whole", timeout=WAIT_S) == first + 3


def test_a_named_reader_is_waited_for_alike(gateway: GatewayProcess) -> None:
    """Proves that the saved position of a reader counts as a query's report does."""
    with Producer(gateway.url) as p:
        receipt = p.send("read", b"v")
        receipt.result(WAIT_S)
        waiter = Waiter(lambda: receipt.processed_by("loader", WAIT_S))
        with Reader(gateway.url, name="loader") as r:
            end = sum(batch.num_rows for batch in r)
            r.save()
        waiter.join(WAIT_S)
        assert waiter.passed == end == r.position


def test_a_wait_for_an_unknown_name_lists_the_known_ones(gateway: GatewayProcess) -> None:
    """Proves that a wait in vain names the readers that there are, and how a query gets a name."""
    with Producer(gateway.url) as p, QueryProgress(gateway.url) as query:
        receipt = p.send("flights", b"v")
        query.report("run", receipt.result(WAIT_S), name="known")
        query.report("other", receipt.result(WAIT_S), label="job.py")
        with pytest.raises(TimeoutError, match=r"'unknown' .* no query or reader of this name .*known.* queryName"):
            receipt.processed_by("unknown", timeout=0.1)
        with pytest.raises(TimeoutError, match="has processed the records below"):
            receipt.processed_by("known", timeout=0)


def test_an_impossible_wait_is_refused(gateway: GatewayProcess) -> None:
    """Proves that unordered records, invalid names and times, and a wait in a callback are refused, and failures are reported."""
    told: list[BaseException] = []

    def deliver(_error: object, receipt: Receipt) -> None:
        try:
            receipt.processed_by("q")
        except UsageError as error:
            told.append(error)

    with Producer(gateway.url) as p:
        with pytest.raises(UsageError, match="unordered"):
            p.send("flights", b"v", ordering="unordered").processed_by("q")
        receipt = p.send("flights", b"v", on_delivery=deliver)
        receipt.result(WAIT_S)
        with pytest.raises(UsageError, match="query name"):
            receipt.processed_by("a b")
        with pytest.raises(UsageError, match="timeout"):
            receipt.processed_by("q", timeout="soon")  # type: ignore[arg-type]  # what is to be refused
        wait_until(lambda: told)
        assert "on_delivery" in str(told[0])
        large = p.send("flights", bytes(5 << 20))
        with pytest.raises(TooLarge):
            large.processed_by("q", timeout=WAIT_S)


def test_a_record_with_an_unknown_offset_is_waited_for(gateway: GatewayProcess) -> None:
    """Proves that a record of which only the commit is known counts as processed once all is that is committed by now."""
    with Producer(gateway.url) as p, QueryProgress(gateway.url) as query:
        receipt = p.send("flights", b"v")
        end = receipt.result(WAIT_S) + 1
        receipt.batch.trimmed = 1  # as where a resumed batch overlapped what was committed
        assert receipt.result() == -1
        query.report("run", end - 1, name="cut")
        with pytest.raises(TimeoutError):
            receipt.processed_by("cut", timeout=0.1)
        query.report("run", end, name="cut")
        assert receipt.processed_by("cut", timeout=WAIT_S) == end


def test_a_forked_child_does_not_wait(gateway: GatewayProcess) -> None:
    """Proves that a child gets an error, because its copies of the connections belong to the parent."""
    with Producer(gateway.url) as p:
        receipt = p.send("flights", b"v")
        receipt.result(WAIT_S)
        child = os.fork()
        if not child:
            try:
                receipt.processed_by("q", timeout=5)
            except UsageError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_query_that_goes_back_is_waited_for_again(gateway: GatewayProcess) -> None:
    """Proves that a new run may go back, a running one may not, and that a new waiter waits until the query reaches the record
    again.
    """
    with Producer(gateway.url) as p, Producer(gateway.url) as other, QueryProgress(gateway.url) as query:
        receipt, later = p.send("flights", b"v"), other.send("flights", b"w")
        ends = [receipt.result(WAIT_S) + 1, later.result(WAIT_S) + 1]
        assert query.report("first", max(ends), name="back") == ""
        assert receipt.processed_by("back", WAIT_S) == max(ends)
        assert "lies below" in query.report("other", 0, name="back")
        assert query.report("second", 0, name="back", back=True) == ""
        assert receipt.processed_by("back", 0) == max(ends)
        with pytest.raises(TimeoutError, match="has processed the records below"):
            later.processed_by("back", timeout=0.1)
        assert query.report("second", max(ends), name="back") == ""
        assert later.processed_by("back", WAIT_S) == max(ends)


def test_a_wait_continues_at_the_next_gateway_when_one_dies(group: RunningGroup) -> None:
    """Proves that a wait continues at the next gateway, and that earlier reports of a query survive the end of its gateway."""
    with Producer(group.url) as p, QueryProgress(group.url) as query:
        receipt = p.send("flights", b"v")
        end = receipt.result(WAIT_S) + 1
        query.report("run", end, name="kept")
        waiter = Waiter(lambda: receipt.processed_by("moving", WAIT_S))
        query.report("run", end - 1, name="moving")
        passing = receipt.batch.query_wait
        assert isinstance(passing, QueryWait)
        wait_until(lambda: passing._queries["moving"].position == end - 1)
        assert passing._gateways is not None
        asked = passing._gateways.addresses[0]
        killed, left = next((name, gateway) for name, gateway in group.all.items() if gateway.port == asked.port)
        left.kill()
        query.report("run", end, name="moving", patience=WAIT_S)
        waiter.join(WAIT_S)
        assert (waiter.passed, waiter.error) == (end, None)
        assert receipt.processed_by("kept", WAIT_S) == end
        listed = tutti("queries", "--json", url=group.url)
        assert listed.err.startswith(f"{killed} did not answer: ")
        moving = next(line for line in listed.json if line["name"] == "moving")
        assert (moving["offset"], moving["lag_records"]) == (end, 0)
        assert moving["gateway"] in set(group.all) - {killed}
