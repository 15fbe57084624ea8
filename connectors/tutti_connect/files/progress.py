"""Where the connector has got to, as the progress of its producer says it in the log."""

from __future__ import annotations

from tutti_connect.progress import JsonProgress

_NAME_CHARACTERS = 40


class Place(JsonProgress, frozen=True):
    """The place behind the last record of a frame; 250 bytes at most.

    Attributes:
        ledger: id of the ledger that numbers the pieces.
        piece: the piece that the last record is of; all earlier ones are in the log, or in quarantine, as far as they go.
        at: position behind that record in its file: bytes (after decompression), or rows of Parquet.
        row: lines, or rows, up to there.
        mark: tells whether the file still has what it had before `at`.
        file: its name, or the end of it: for people.
    """

    ledger: str
    piece: int
    at: int
    row: int
    mark: str
    file: str


def shortened(name: str) -> str:
    """A file's name as a place has it: what is not printable ASCII takes more room, and is left out."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "?" for letter in name)
    return plain if len(plain) <= _NAME_CHARACTERS else "..." + plain[-_NAME_CHARACTERS + 3 :]
