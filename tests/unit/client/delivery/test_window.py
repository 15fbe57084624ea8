"""Tests of the window: it reports the committed records as the log has them, for any order of outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data.client_protocol import SUBMIT
from tutti.delivery.window import Window
from tutti.errors import Aborted
from tutti.producer import Producer


def admitted(*progress: bytes) -> Window:
    """A window with a batch of one record for each of these."""
    window = Window(None)
    for told in progress:
        batch = Batch("t", 0, 1e9)
        batch.count, batch.size, batch.progress = 1, 10, told
        window.admit(batch)
    return window


@pytest.mark.parametrize("order", list(permutations(range(1, 5))))
@pytest.mark.parametrize("progress", [(b"a", b"", b"", b""), (b"a", b"b", b"", b"c"), (b"", b"a", b"", b"b"), (b"", b"", b"", b"")])
def test_progress_is_that_of_all_that_has_committed(progress: tuple[bytes, ...], order: tuple[int, ...]) -> None:
    """Proves it at each outcome: what was sent before a record that committed has committed, too."""
    window = admitted(*progress)
    for told in range(1, 5):
        window.commit(order[told - 1], 1, 10 + order[told - 1])
        most = max(order[:told])
        assert window.committed == Resume(most, ([b"", *filter(None, progress[:most])])[-1])
    assert not len(window)


def test_failed_batches_have_no_progress() -> None:
    window = admitted(b"a", b"b", b"")
    window.commit(1, 1, 10)
    window.fail_from(2, Failure(Aborted("no space")))
    assert window.committed == Resume(1, b"a")


def test_batches_committed_by_an_epochs_answer_have_their_progress() -> None:
    window = admitted(b"a", b"", b"b", b"", b"c")
    window.commit_upto(4)
    assert window.committed == Resume(4, b"b")


class _Late(FakeGateway):
    """Tells the outcome of the first batches, once it is `late`, after that of the next ones."""

    late = False
    kept: Sequence[bytes] | None = None

    def __enter__(self) -> _Late:
        return self

    def answers(self, routing: bytes, parts: list[bytes]) -> list[bytes]:
        told = list(super().answers(routing, parts))
        if parts[0][:1] != SUBMIT or not self.late:
            return told
        if self.kept is None:
            self.kept = told
            return []
        late, self.kept = self.kept, []
        return [*told, *late]


def test_a_running_producer_resumes_after_its_last_commit() -> None:
    """Proves it by a connection, where an outcome overtakes that of what was sent before."""
    records = pa.RecordBatch.from_pydict({"value": [b"v"]})
    with _Late() as gateway, Producer(gateway.url, producer="p") as p:
        assert p.send("t", b"makes the topic").result(10) == 0
        gateway.late = True
        first = p.send_batch("t", records, progress=b"place 1")
        until(lambda: gateway.kept is not None)
        second = p.send_batch("t", records)
        assert (second.result(10), first.result(10)) == (2, 1)
        assert p.resume() == Resume(3, b"place 1")
