"""Send the lines of a file, each once, also across restarts and kills.

python examples/python/send.py FILE TOPIC          $TUTTI_URL names the gateways; the default is that of `tutti dev`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tutti import Producer, TuttiError


def send(file: Path, topic: str) -> int:
    """Send the lines that the log lacks, and return their number."""
    count = 0
    with file.open("rb") as lines, Producer(producer=f"{file.name}-to-{topic}") as producer:
        # The position after a line commits together with that line.
        _, position = producer.resume()
        lines.seek(int(position or b"0"))
        while (line := lines.readline()).endswith(b"\n"):  # an incomplete last line waits for a later run
            producer.send(topic, line.rstrip(b"\n"), progress=b"%d" % lines.tell())
            count += 1
    return count  # the end of `with` waits for all receipts, or raises the first error


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(f"sent {send(Path(sys.argv[1]), sys.argv[2])} lines")
    except TuttiError as error:  # its text names the problem and the remedy
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)  # 3 if no gateway answers
    except OSError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # the next run sends the rest
