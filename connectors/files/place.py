"""Where the connector has got to, as the progress of its producer says it in the log."""

from __future__ import annotations

import msgspec

from gateway.errors import FormatError

_NAME_CHARACTERS = 40


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place behind the last record of a frame.

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

    def encode(self) -> bytes:
        """As progress, 250 bytes at most."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Place)


def shortened(name: str) -> str:
    """A file's name as a place has it: what is not printable ASCII takes more room, and is left out."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "?" for letter in name)
    return plain if len(plain) <= _NAME_CHARACTERS else "..." + plain[-_NAME_CHARACTERS + 3 :]


def decode_place(progress: bytes, producer: str) -> Place:
    """The place in a progress.

    Raises:
        FormatError: somebody else sent under the producer's name.
    """
    try:
        return _DECODER.decode(progress)
    except msgspec.DecodeError as error:
        raise FormatError(
            f"the progress of producer {producer!r} in the log, {progress[:60]!r}, is none of this connector ({error}): "
            f"give the connector another `name`"
        ) from error
