"""Print the records of a topic. A restart continues after the last printed record.

python examples/python/read.py TOPIC [--follow]    $TUTTI_URL names the gateways; the default is that of `tutti dev`
"""

from __future__ import annotations

import sys

from tutti import Reader, TuttiError


def read(topic: str, follow: bool) -> None:
    """Print the records that no earlier run printed. With `follow`, also print later records, until Ctrl-C."""
    columns = ["offset", "value", "producer", "sequence"]
    with Reader(topics=[topic], columns=columns, name=f"printer-of-{topic}", follow=follow) as reader:
        for batch in reader:  # pyarrow.RecordBatch, in the order of the log
            for row in batch.to_pylist():
                print(row["offset"], row["value"].decode(), f"({row['producer']} {row['sequence']})", flush=True)
            reader.save()  # after the work: after a crash before this line, the next run prints the batch again


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--follow"]):
        sys.exit(__doc__)
    try:
        read(sys.argv[1], follow="--follow" in sys.argv)
    except TuttiError as error:  # its text names the problem and the remedy
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)  # 3 if no gateway answers
    except KeyboardInterrupt:
        sys.exit(130)
