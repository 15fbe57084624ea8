"""Tests that the pages of the Spark source name every option and every alias."""

from pathlib import Path

import pytest

from tutti_spark.common.options import ALIASES, TAKES

DOCS = Path(__file__).parents[3] / "docs/how-to"


@pytest.mark.parametrize("option", [*TAKES, *ALIASES])
def test_the_page_names_the_option(option: str) -> None:
    assert f"`{option}`" in (DOCS / "spark.md").read_text("utf-8")
