"""Base class of a source position that is committed as JSON in a producer's progress."""

from __future__ import annotations

from typing import Self

import msgspec

from tutti.errors import FormatError


class JsonProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source position; each connector defines its fields."""

    def encode(self) -> bytes:
        """Return the position as progress. The fields must keep it within 256 bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, progress: bytes, producer: str) -> Self:
        """Return the position that a producer's progress contains.

        Raises:
            FormatError: another program sent under the producer's name.
        """
        try:
            return msgspec.json.decode(progress, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(
                f"the progress of producer {producer!r} in the log, {progress[:60]!r}, is not from this connector ({error}): "
                f"give the connector another `name`"
            ) from error
