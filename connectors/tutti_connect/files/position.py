"""Position of the connector, committed to the log as its producer's progress."""

from __future__ import annotations

from tutti_connect.progress import JsonProgress

_NAME_CHARACTERS = 40


class FilePosition(JsonProgress, frozen=True):
    """Position after the last record of a frame; at most 250 bytes.

    Attributes:
        ledger: id of the ledger that numbers the pieces.
        piece: number of the piece that has the last record; all earlier pieces are in the log, or in quarantine.
        at: position after that record in its file, in bytes after decompression, or in rows of Parquet.
        row: number of lines, or rows, up to that position.
        mark: digest that identifies the file's content before `at`.
        file: end of the file's name, only for people who read the progress.
    """

    ledger: str
    piece: int
    at: int
    row: int
    mark: str
    file: str


def shortened(name: str) -> str:
    """Return the last characters of a file's name as printable ASCII, so that the progress stays within 256 bytes."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "?" for letter in name)
    return plain if len(plain) <= _NAME_CHARACTERS else "..." + plain[-_NAME_CHARACTERS + 3 :]
