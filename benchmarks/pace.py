"""Records at a steady pace while something else happens: what each waited for its receipt, and for how long there was none."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from benchmarks.figures import percentile
from tutti import Producer

RATE = 500
VALUE = bytes(1000)
MS_PER_NS = 1e-6
Span = tuple[int, int]  # from, to: monotonic clock, ns


def gap_ms(receipts: Sequence[int], span: Span) -> float:
    """The longest time without a receipt within the span, ms: what began before it or ended after it counts as far as it is inside.

    Args:
        receipts: when each came (ns), sorted.
        span: of the time that is looked at.
    """
    since, until = span
    inside = [since, *(told for told in receipts if since < told < until), until]
    return max(after - before for before, after in pairwise(inside)) * MS_PER_NS


class Paced:
    """Sends records of 1 KB, `rate` a second, from a thread of its own, until the block ends. Each receipt is noted."""

    def __init__(self, url: str, rate: int = RATE) -> None:
        """Nothing is sent yet."""
        self._producer = Producer(url, producer="paced")
        self._rate = rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._told: list[Span] = []  # of each record: sent, told
        self._failed: list[str] = []
        self.sent = 0

    def __enter__(self) -> Self:
        """Begin, once a first record is committed."""
        self._producer.send("paced", VALUE).result(60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send no more, and wait for all receipts."""
        self._over.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        begin = time.monotonic()
        for number in range(1 << 62):
            if self._over.wait(max(0.0, begin + number / self._rate - time.monotonic())):
                return
            sent = time.monotonic_ns()

            def told(error: object, receipt: object, sent: int = sent) -> None:
                if error is None:
                    self._told.append((sent, time.monotonic_ns()))
                else:
                    self._failed.append(str(error))

            self.sent += 1
            self._producer.send("paced", VALUE, on_delivery=told)

    def span(self, seconds: float) -> Span:
        """Let it go on for so long; that time."""
        since = time.monotonic_ns()
        time.sleep(seconds)
        return since, time.monotonic_ns()

    def settle(self) -> None:
        """Wait until all that was sent so far has its receipt.

        Raises:
            SystemExit: a record failed, or has none after a minute.
        """
        sent, limit_s = self.sent, time.monotonic() + 60
        while len(self._told) < sent and not self._failed:
            if time.monotonic() > limit_s:
                raise SystemExit(f"{sent - len(self._told)} records have no receipt after a minute")
            time.sleep(0.01)
        if self._failed:
            raise SystemExit(f"{len(self._failed)} records failed, the first one: {self._failed[0]}")

    def at_ms(self, span: Span, share: float) -> float:
        """The time (ms) within which `share` of the records that were sent in the span had their receipts."""
        self.settle()
        since, until = span
        times = sorted(told - sent for sent, told in self._told if since <= sent < until)
        if not times:
            raise SystemExit("no record was sent meanwhile")
        return percentile(times, share) * MS_PER_NS

    def gap_ms(self, span: Span) -> float:
        """The longest time without a receipt in the span, ms."""
        self.settle()
        return gap_ms(sorted(told for _, told in self._told), span)
