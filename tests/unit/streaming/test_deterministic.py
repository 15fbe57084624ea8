"""Tests of `deterministic(df)` without Spark: the text of a finding, and arguments that are not a DataFrame with a plan."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

from tutti.errors import UsageError
from tutti_spark.deterministic import Finding, deterministic


class Remote:
    """As a DataFrame of Spark Connect answers."""

    @property
    def _jdf(self) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "_jdf"})


@pytest.mark.parametrize("other", [Remote(), None, "df"])
def test_an_object_without_a_plan_is_refused_with_a_remedy(other: Any) -> None:
    with pytest.raises(UsageError, match=rf"this is .*{type(other).__name__}: create it in a session without Spark Connect"):
        deterministic(other)


def test_a_finding_is_a_line_with_cause_place_reason_and_remedy() -> None:
    found = Finding("rand()", "Project [rand()]", "it is chance", "use a hash")
    assert str(found) == "rand() in Project [rand()]: it is chance; use a hash"
    assert found == Finding("rand()", "Project [rand()]", "it is chance", "use a hash")
