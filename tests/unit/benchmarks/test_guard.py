"""Tests of the benchmark guard: it reports a change for the worse by direction, beyond the noise of the rounds, and never for noise
alone.
"""

from __future__ import annotations

from benchmarks.guard import Moved, compare, report, too_noisy

RATE, TIME = "1 KB, share of the bare fan-out", "one at a time p50, times sync, round trips and turns"


def _around(value: float, share: float = 0.01) -> list[float]:
    return [value * (1 - share), value, value * (1 + share)] * 4


def test_worse_is_less_of_a_rate_and_more_of_a_time() -> None:
    rate, time = compare({RATE: _around(0.8), TIME: _around(4.0)}, {RATE: _around(0.4), TIME: _around(8.0)})
    assert (round(rate.change, 2), round(time.change, 2)) == (1.0, 1.0)
    assert (rate.verdict, time.verdict) == ("WORSE", "WORSE")
    rate, time = compare({RATE: _around(0.4), TIME: _around(8.0)}, {RATE: _around(0.8), TIME: _around(4.0)})
    assert (rate.verdict, time.verdict) == ("better", "better")


def test_a_small_change_is_reported_and_is_not_a_failure() -> None:
    (moved,) = compare({TIME: _around(1.0)}, {TIME: _around(1.15)})
    assert moved.verdict == "a little worse"
    (moved,) = compare({TIME: _around(1.0)}, {TIME: _around(1.005)})
    assert moved.verdict == "as before"


def test_variation_between_rounds_counts_as_noise() -> None:
    (moved,) = compare({TIME: _around(1.0, 0.9)}, {TIME: _around(1.5)})
    assert moved.verdict == "too noisy to tell"
    (moved,) = compare({TIME: _around(1.0, 0.15)}, {TIME: _around(1.35)})
    assert moved.verdict == "a little worse"  # by a third, of which a sixth may be noise


def test_noise_above_the_threshold_hides_all_but_larger_changes() -> None:
    assert [Moved("", change, 0.47).verdict for change in (0.1, 0.6, -0.6)] == ["too noisy to tell"] * 3
    assert Moved("", 0.7, 0.47).verdict == "WORSE"


def test_the_report_fails_only_for_a_change_for_the_worse() -> None:
    text, code = report({"ratios": {RATE: _around(0.8), TIME: _around(4.0)}}, {RATE: _around(0.8), TIME: _around(8.0)})
    assert code == 1
    head, *lines = text.splitlines()
    assert ["WORSE" in line for line in lines] == [False, True]
    assert [head.index(word) for word in ("this run", "recorded", "worse by")] == [
        lines[1].index(word) for word in ("8", "4", "+1")
    ]
    assert report({"ratios": {RATE: _around(0.8)}}, {RATE: _around(0.8)})[1] == 0


def test_an_undecidable_comparison_is_not_a_success() -> None:
    """Proves it of noise, of a ratio that is measured no more, and that neither hides what got worse."""
    assert report({"ratios": {TIME: _around(1.0)}}, {TIME: _around(1.0, 0.9)})[1] == 3
    text, code = report({"ratios": {RATE: _around(0.8), "as it was called": _around(1.0)}}, {RATE: _around(0.8)})
    assert code == 3
    assert "not measured any more" in text
    assert report({"ratios": {RATE: _around(0.8), TIME: _around(1.0)}}, {RATE: _around(0.4), TIME: _around(1.0, 0.9)})[1] == 1
    assert [name.partition(" (")[0] for name in too_noisy({RATE: _around(0.8), TIME: _around(1.0, 0.9)})] == [TIME]


def test_without_a_record_there_is_nothing_to_fail() -> None:
    text, code = report(None, {RATE: _around(0.8)})
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == ["this", RATE.split(maxsplit=1)[0]]
