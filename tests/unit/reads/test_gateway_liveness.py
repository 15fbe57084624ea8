"""Tests of gateway liveness: a gateway counts as silent after its live page is unchanged for several polls, not earlier and not
longer.
"""

from pathlib import Path

from tutti import limits
from tutti.data.log_state import LogState
from tutti.log.files.data_directory import open_directory
from tutti.log.files.live_page import LivePage
from tutti.log.read.reader import LogReader
from tutti_gateway.reads.common.gateway_liveness import Liveness

LOOKS = limits.FLIGHT_SILENCE_MS_MAX // 1000


def pulse_of(path: Path) -> tuple[Liveness, LogReader]:
    open_directory(str(path), gateway="jfk", group="ingest").close()
    reader = LogReader(path)
    return Liveness(reader.heartbeat_us), reader


def published(path: Path) -> LivePage:
    page = LivePage(str(path))
    page.publish(LogState(), 1)
    return page


def test_an_unchanged_live_page_means_silence_until_the_next_change(tmp_path: Path) -> None:
    pulse, reader = pulse_of(tmp_path)
    page = published(tmp_path)
    reader.frontier()
    time_us = 1_700_000_000_000_000
    page.heartbeat(time_us)
    assert not pulse.silent()
    for step in (1_000_000, -3_600_000_000, 1_000_000):  # whatever the clock is set to
        time_us += step
        page.heartbeat(time_us)
        assert [pulse.silent() for _ in range(LOOKS + 1)] == [*[False] * (LOOKS - 1), True, True]
    page.heartbeat(time_us + 1)
    assert not pulse.silent()


def test_a_gateway_never_seen_is_not_silent(tmp_path: Path) -> None:
    pulse, reader = pulse_of(tmp_path)
    assert not any(pulse.silent() for _ in range(3 * LOOKS))  # no page
    page = published(tmp_path)
    page.heartbeat(1)
    page = published(tmp_path)  # another run
    reader.frontier()
    assert not any(pulse.silent() for _ in range(3 * LOOKS))  # a gateway that begins
    page.heartbeat(2)
    assert not pulse.silent()
    page.invalidate()
    assert not any(pulse.silent() for _ in range(3 * LOOKS))
