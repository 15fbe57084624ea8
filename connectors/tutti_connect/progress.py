"""Base class for the position of a connector in its source, committed as JSON in its producer's progress."""

from __future__ import annotations

from typing import Self

import msgspec

from tutti.errors import FormatError


class JsonProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position in a source; each connector defines a subclass with its fields."""

    def encode(self) -> bytes:
        """Return the position as JSON for a producer's progress, which has at most 256 bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, progress: bytes, producer: str) -> Self:
        """Return the position that a producer's progress contains.

        Raises:
            FormatError: another program has sent records under this producer name.
        """
        try:
            return msgspec.json.decode(progress, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(
                f"producer {producer!r} has the progress {progress[:60]!r} in the log, which is not from this connector ({error}): "
                f"give the connector another `name`"
            ) from error
