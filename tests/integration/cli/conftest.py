"""Fixture of this folder: one gateway for all tests of a module that leave it intact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands import DevGroup, dev_group


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevGroup]:
    with dev_group(tmp_path_factory.mktemp("house") / "dev") as one:
        yield one
