"""What producers send for the departures job, free of Spark so that they can import it.

A record's value is one departure as a JSON object with at least the fields of `FIELDS`, its key the airport. Two times would do as
event time; this is the scheduled one, exact in UTC: the hour `time_hour` of the data set plus `minute`.

When every producer has delivered everything, one of them sends `CLOSING_RECORD`. The log has one order, so it stands behind all
departures; it moves the watermark past every window, and the job gives out the last ones.
"""

from __future__ import annotations

TOPIC = "flights"
#: Name and type, in Spark's words. `dep_delay` is in minutes, null when the aircraft did not leave.
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
#: Later than any departure; the job drops what is at or after it.
CLOSING_TIME = "9999-01-01T00:00:00Z"
CLOSING_RECORD: bytes = b'{"time_hour":"' + CLOSING_TIME.encode() + b'","minute":0}'
#: How far a departure may stand behind a later one of another airport, in event time; producers must keep well within.
WATERMARK_DELAY = "12 hours"
