"""The window tells what is committed as the log says it, in whichever order outcomes come."""

from __future__ import annotations

from itertools import permutations

import pytest

from gateway.client.receipt import Batch, Failure, Resume
from gateway.client.window import Window
from gateway.errors import Aborted


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


def test_progress_of_what_failed_is_none() -> None:
    window = admitted(b"a", b"b", b"")
    window.commit(1, 1, 10)
    window.fail_from(2, Failure(Aborted("no space")))
    assert window.committed == Resume(1, b"a")


def test_what_an_epoch_says_is_committed_has_its_progress() -> None:
    window = admitted(b"a", b"", b"b", b"", b"c")
    window.commit_upto(4)
    assert window.committed == Resume(4, b"b")
