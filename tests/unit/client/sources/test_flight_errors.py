"""Tests of errors of Flight calls: each error becomes an exception of the library."""

from __future__ import annotations

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway, error_of
from tutti.errors import Refused
from tutti.sources.query_progress import QueryProgress


def test_an_action_that_an_earlier_release_does_not_know_is_refused() -> None:
    """A driver that reports its progress recognizes such a gateway by the code, and then reports once a minute."""

    def fail(what: str) -> None:
        raise error_of("unknown_action", "there is no action 'report'")

    with ReadableGateway(1) as gateway, QueryProgress(gateway.url, patience=1) as progress:
        gateway.reads.fail = fail
        with pytest.raises(Refused, match="earlier release: upgrade it") as refused:
            progress.report("run", 5)
    assert refused.value.code == "unknown_action"
