"""Record format of the departures job, without Spark, so that producers can import it.

A record's value is one departure, a JSON object with at least the fields of `FIELDS`; its key is the airport. The event time is the
scheduled departure in UTC: `time_hour` of the data set plus `minute`.

After all producers have delivered all departures, one of them sends `CLOSING_RECORD`. This record follows all departures in the
log. It moves the watermark past every window, so the job outputs the last windows.
"""

from __future__ import annotations

TOPIC = "flights"
#: Names and Spark types. `dep_delay` is in minutes; null for a cancelled departure.
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
#: Later than any departure; the job drops records at or after this time.
CLOSING_TIME = "9999-01-01T00:00:00Z"
CLOSING_RECORD: bytes = b'{"time_hour":"' + CLOSING_TIME.encode() + b'","minute":0}'
#: Maximum event-time delay by which a departure may follow a newer one in the log; producers must stay well below this limit.
WATERMARK_DELAY = "12 hours"
