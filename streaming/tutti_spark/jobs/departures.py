"""Record format of the jobs with departures. The module needs no Spark, so that producers can import it.

The value of a record is one departure, a JSON object with at least the fields of `FIELDS`. The key of the record is the airport.
The event time is the scheduled departure in UTC, which is `time_hour` of the data set plus `minute`.

After all producers have delivered all departures, one of them sends `CLOSING_RECORD`, which therefore follows all departures in the
log. The closing record moves the watermark past every window, so that the job `flights.py` outputs the last windows.
"""

from __future__ import annotations

TOPIC = "flights"
#: Name -> Spark type of each field. `dep_delay` is in minutes, and null for a cancelled departure.
FIELDS: dict[str, str] = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "origin": "STRING",
    "time_hour": "TIMESTAMP",
    "minute": "INT",
    "dep_delay": "INT",
}
#: Event time of the closing record, later than any departure. The jobs drop records at or after this time.
CLOSING_TIME = "9999-01-01T00:00:00Z"
CLOSING_RECORD: bytes = b'{"time_hour":"' + CLOSING_TIME.encode() + b'","minute":0}'
#: Maximum event time by which a departure may follow a newer departure in the log. Producers must stay well below this limit.
WATERMARK_DELAY = "12 hours"
