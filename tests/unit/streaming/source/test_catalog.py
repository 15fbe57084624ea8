"""Tests of table options in Spark's catalog: they are given at creation only, and every later read has them from the table's
schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tutti.errors import UsageError
from tutti_spark.common.spark_schema import spark_schema
from tutti_spark.source.catalog import merge_table_options
from tutti_spark.source.data_source import TuttiDataSource

URL = "tutti://127.0.0.1:7400"
#: What Spark adds to the options when it creates a table.
ABOUT = {"provider": "tutti", "owner": "me", "comment": "departures"}


def create(options: Mapping[str, str], **properties: str) -> StructType:
    """The schema that the catalog keeps of a table: Spark passes each option twice, and properties beside them."""
    twice = {key.lower(): value for key, value in options.items()}
    twice |= {f"option.{key}": value for key, value in twice.items()}
    kept = TuttiDataSource(twice | ABOUT | properties).schema()
    return StructType.fromJson(kept.jsonValue())


def test_a_table_has_its_options_in_its_schema() -> None:
    """Proves that a read without options of its own has those of the table, with our names, and that columns are as without it."""
    schema = create({"gateways": URL, "subscribe": "a,b", "startingOffset": "3", "columns": "value,offset"})
    assert merge_table_options({}, schema) == {"gateways": URL, "topics": "a,b", "startingOffset": "3", "columns": "value,offset"}
    assert schema.names == ["value", "offset"]
    reader = TuttiDataSource({}).reader(schema)
    assert vars(reader)["_options"].topics == ("a", "b")
    assert TuttiDataSource({"gateways": URL}).schema() == spark_schema(None), "a read that is no table's carries nothing"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingoffset": "7"}, {"topics": "a", "startingoffset": "7"}),
        ({"startingOffsets": "7"}, {"topics": "a", "startingOffsets": "7"}),
        ({"startingTimestamp": "0"}, {"topics": "a", "startingTimestamp": "0"}),
        ({"subscribePattern": ".*"}, {"subscribePattern": ".*", "startingOffset": "3"}),
        ({"endingOffset": "9"}, {"topics": "a", "startingOffset": "3", "endingOffset": "9"}),
    ],
)
def test_options_of_a_read_come_before_those_of_the_table(given: dict[str, str], expected: dict[str, str]) -> None:
    """Proves that a read may say otherwise, in whichever of two ways and by whichever name."""
    schema = create({"gateways": URL, "topics": "a", "startingOffset": "3"})
    assert merge_table_options(given, schema) == {"gateways": URL} | expected


def test_directories_of_a_table_do_not_move_with_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that relative names count from where the table was created; Spark passes a path without option.X."""
    monkeypatch.chdir(tmp_path)
    schema = TuttiDataSource(
        ABOUT | {"path": "file:/data/a b,g2", "location": "file:/data/a b,g2", "option.archive": "s3://b/c"}
    ).schema()
    assert merge_table_options({}, schema) == {"path": f"/data/a b,{tmp_path}/g2", "archive": "s3://b/c"}
    assert (
        merge_table_options({"gateways": URL}, create({"gateways": "tutti://h:1", "archive": "old"}))["archive"]
        == f"{tmp_path}/old"
    )


def test_properties_of_a_table_are_no_options() -> None:
    """Proves that TBLPROPERTIES of any name are left alone, and that a wrong option is refused all the same."""
    assert merge_table_options({}, create({"gateways": URL}, team="ops", columns="nothing")) == {"gateways": URL}
    with pytest.raises(UsageError, match="option 'nosuch'"):
        create({"gateways": URL, "noSuch": "1"})
    with pytest.raises(UsageError, match="with a list of columns"):
        TuttiDataSource({}).reader(spark_schema(None))
    with pytest.raises(UsageError, match="TBLPROPERTIES"):
        create({}, gateways=URL)


def test_a_token_is_not_kept_in_a_schema() -> None:
    """Proves that a secret is refused where all who see the table would see it."""
    with pytest.raises(UsageError, match=r"option 'token' \(not shown\) .* Use 'tokenFile'") as error:
        create({"gateways": URL, "Token": "sesame"})
    assert "sesame" not in str(error.value)
