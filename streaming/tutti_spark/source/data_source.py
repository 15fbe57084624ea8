"""`TuttiDataSource`, the class that Spark instantiates. Its methods import readers and writers, so that discovery stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tutti_spark.common import requirements

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from tutti_spark.common.options import Kind, ReadOptions


class TuttiDataSource(DataSource):
    """`format("tutti")` of `spark.read`, `readStream`, `write` and `writeStream`. docs/how-to/spark.md lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        """Check that this Python process has the required versions, and store the options."""
        requirements.check()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tutti"

    def schema(self) -> StructType:
        """Return the schema of the requested columns, in the requested order."""
        from tutti_spark.common.options import parse
        from tutti_spark.common.spark_schema import spark_schema
        from tutti_spark.source.catalog import new_table_options, with_metadata

        table = new_table_options(self.options)
        if table is None:
            return spark_schema(parse(self.options).columns)
        return with_metadata(spark_schema(parse(table).columns), table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of one range of the committed log."""
        from tutti_spark.source.batch import BatchReader

        return BatchReader(self._read_options("batch", schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a streaming reader of the committed log."""
        from tutti_spark.source.stream import StreamReader

        return StreamReader(self._read_options("stream", schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer of one DataFrame."""
        from tutti_spark.sink.options import check_columns, parse
        from tutti_spark.sink.sink import BatchSink

        options = parse(self.options, stream=False)
        check_columns(schema, options, overwrite=overwrite)
        return BatchSink(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return a streaming writer of micro-batches."""
        from tutti_spark.sink.options import check_columns, parse
        from tutti_spark.sink.sink import StreamSink

        options = parse(self.options, stream=True)
        check_columns(schema, options, overwrite=overwrite)
        return StreamSink(options)

    def _read_options(self, kind: Kind, schema: StructType) -> ReadOptions:
        from tutti_spark.common.options import parse
        from tutti_spark.common.spark_schema import check_requested_schema
        from tutti_spark.source.catalog import merge_table_options, without_metadata

        options = parse(merge_table_options(self.options, schema), kind)
        check_requested_schema(without_metadata(schema), options.columns)
        return options
