"""Tests of the paced benchmark: records continue after the end of their gateway, each with its receipt, and the figures show the
pause.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.fleet import gateway
from benchmarks.pace import Paced
from tutti import Reader

WAIT_S = 120.0
RATE = 200


def until_sent(paced: Paced, count: int) -> None:
    limit_s = time.monotonic() + WAIT_S
    while paced.sent < count:
        assert time.monotonic() < limit_s
        time.sleep(0.01)


@pytest.mark.timeout(400)
def test_a_gateway_that_ends_and_comes_back_is_a_pause_and_no_loss(tmp_path: Path) -> None:
    with gateway(tmp_path, prepared=0) as measured:
        with Paced(measured.url, RATE) as paced:
            until_sent(paced, 20)
            measured.kill()
            down = time.monotonic_ns()
            until_sent(paced, paced.sent + 20)  # of which nobody hears
            alone = down, time.monotonic_ns()
            started = time.monotonic_ns()
            measured.start()
            measured.wait_ready()
            until_sent(paced, paced.sent + 20)
            whole = down, time.monotonic_ns()
            assert paced.at_ms(alone, 0.0) >= (started - alone[1]) / 1e6  # the one that waited least
            assert paced.at_ms(whole, 1.0) >= paced.at_ms(alone, 0.5)
            assert 0 < paced.gap_ms(whole) <= (whole[1] - whole[0]) / 1e6
        with Reader(measured.url, topics=["paced"], start=0) as reader:
            assert sum(batch.num_rows for batch in reader) == 1 + paced.sent
