"""Tests of the health pages: a gateway is ready if it accepts records, and otherwise the page has the reason."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec import json

from tutti_gateway.reads.admin.pages import Pages
from tutti_gateway.reads.common.gateway_link import GatewayLink


class Link:
    def __init__(self, status: dict[str, Any] | None) -> None:
        self._status = status
        self.reason = "it does not answer"

    def status(self) -> dict[str, Any] | None:
        return self._status


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        ({"state": "primary", "reason": ""}, 200, ""),
        ({"state": "primary", "reason": "39 MiB are free"}, 503, "39 MiB are free"),
        ({"state": "halted", "reason": "the disk failed"}, 503, "the disk failed"),
        (None, 503, "it does not answer"),
    ],
)
def test_ready_means_accepting_records(status: dict[str, Any] | None, code: int, reason: str) -> None:
    unused: Any = None
    pages = Pages(unused, unused, unused, unused, cast(GatewayLink, Link(status)), *[unused] * 5)
    found, _, body, _ = pages.ready({})
    assert (found, json.decode(body)["reason"]) == (code, reason)
    assert pages.health({})[0] == (503 if status is None else 200)
