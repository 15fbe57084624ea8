"""Tests of the watch of the security files: each new problem and its end are logged once, a lasting problem once a day."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tutti.security.certificates import CertificateWatch
from tutti.security.tokens import Tokens
from tutti_gateway.node.common.security_watch import SecurityWatch
from tutti_gateway.transport.keys import Keyring

DAY_S = 86_400


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Any]] = []

    def warning(self, text: str, reason: str = "") -> None:
        self.lines.append(("warning", text, reason))

    def info(self, text: str) -> None:
        self.lines.append(("info", text, ""))

    def drain(self) -> list[tuple[str, str, Any]]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr("tutti_gateway.node.common.security_watch.time.monotonic", lambda: clock.now_s)
    return clock


def test_a_broken_token_file_is_logged_once_and_again_when_it_is_right(tmp_path: Path, clock: SimpleNamespace) -> None:
    path, log, now = tmp_path / "tokens.toml", Log(), SimpleNamespace(us=0)
    path.write_text("[tokens]\n")
    tokens = Tokens(path, lambda: now.us)
    watch = SecurityWatch(tokens, None, None, cast("Any", log))

    def pass_s(seconds: int) -> list[tuple[str, str, Any]]:
        for _ in range(seconds):
            now.us += 1_000_000
            clock.now_s += 1
            tokens.refresh()
            watch.check()
        return log.drain()

    assert pass_s(3) == []
    path.write_text("[tokens\n")
    ((level, text, reason),) = pass_s(10)
    assert (level, text) == ("warning", "the token file has a problem")
    assert reason.startswith("the tokens read before stay valid: ")
    assert watch.to_dict() == {"trouble": reason, "problems": {"tokens": reason}}
    path.write_text("[tokens]\n")
    assert pass_s(10) == [("info", "the token file is valid again", "")]
    assert watch.to_dict() == {"trouble": "", "problems": {}}


def test_a_certificate_near_its_end_is_logged_once_a_day_from_the_second_day_on(clock: SimpleNamespace) -> None:
    # The configuration's advice is the log line of the first day.
    refreshes: list[float] = []
    certificate = SimpleNamespace(trouble="it expires soon", expires_us=7, refresh=lambda: refreshes.append(clock.now_s))
    log = Log()
    watch = SecurityWatch(None, None, cast("CertificateWatch", certificate), cast("Any", log))
    for hour in range(73):
        watch.check()
        assert len(log.drain()) == (hour in (24, 48, 72))
        assert refreshes[-1] == clock.now_s
        clock.now_s += 3600
    certificate.trouble = "it expired"
    watch.check()
    assert log.drain() == [("warning", "the certificate has a problem", "it expired")]
    assert watch.to_dict() == {
        "trouble": "it expired",
        "problems": {"certificate": "it expired"},
        "certificate": {"expires_us": 7},
    }


def test_problems_of_several_files_are_one_text() -> None:
    keys, certificate = SimpleNamespace(trouble="a key"), SimpleNamespace(trouble="an end", expires_us=7, refresh=lambda: None)
    watch = SecurityWatch(None, cast("Keyring", keys), cast("CertificateWatch", certificate), cast("Any", Log()))
    assert watch.to_dict()["trouble"] == "a key; an end"


def test_a_gateway_without_security_files_reports_nothing() -> None:
    assert SecurityWatch(None, None, None, cast("Any", Log())).to_dict() == {}
