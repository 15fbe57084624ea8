"""Helpers of the spool tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.client.fake_gateway import FakeGateway
from tutti.producer import Producer


def opened(gateway: FakeGateway, spool: Path, **options: Any) -> Producer:
    return Producer(gateway.url, producer="jfk", spool=spool, **{"delivery_timeout": 0.01, **options})


def committed(gateway: FakeGateway) -> list[bytes | None]:
    return gateway.log.values()


def files(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir())
