"""What a producer saw, written down as it happened: one line a fact, so that a killed producer's witness is still good.

`s N T` record N was handed to `send` at T; `c N OFFSET T` it was reported committed; `a N` aborted; `u N` unknown or fenced. T is
the monotonic clock of the machine, ns, the same for all processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Witness:
    """The facts of one producer. A record that was handed over again after a restart has its last time of sending."""

    producer: str
    sent: dict[int, int] = field(default_factory=dict)
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)


def read_witness(producer: str, path: Path) -> Witness:
    """The witness in a file; a last line that a kill cut off is passed over."""
    witness = Witness(producer)
    text = path.read_text("ascii") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        kind, *numbers = line.split()
        number = int(numbers[0])
        if kind == "s":
            witness.sent[number] = int(numbers[1])
            witness.aborted.discard(number)
        elif kind == "c":
            witness.committed[number] = (int(numbers[1]), int(numbers[2]))
        elif kind == "a":
            witness.aborted.add(number)
        else:
            witness.unknown.add(number)
    return witness
