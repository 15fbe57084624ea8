"""Send the lines of a file, each once, however often this is started and wherever it was killed.

python examples/python/send.py FILE TOPIC          gateways are those of $TUTTI_URL, or the one of `tutti dev`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tutti import Producer

URL = os.environ.get("TUTTI_URL", "tutti://127.0.0.1:7400")


def send(file: Path, topic: str) -> int:
    """Send what the log has not of the file yet; how many lines that were."""
    count = 0
    with file.open("rb") as lines, Producer(URL, producer=f"lines-of-{file.name}") as producer:
        # The log keeps the place behind the last line beside that line: both are there, or neither.
        _, place = producer.resume()
        lines.seek(int(place or b"0"))
        while (line := lines.readline()).endswith(b"\n"):  # a last line that is still being written waits for the next run
            producer.send(topic, line.rstrip(b"\n"), progress=b"%d" % lines.tell())
            count += 1
    return count  # leaving `with` has waited for all receipts, or raised the first error


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(f"sent {send(Path(sys.argv[1]), sys.argv[2])} lines")
