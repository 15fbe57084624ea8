"""What a producer's progress says, as JSON: where the source has got to."""

from __future__ import annotations

from typing import Self

import msgspec

from tutti.errors import FormatError


class JsonProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place of a source; a connector's has its fields."""

    def encode(self) -> bytes:
        """As progress, 256 bytes at most: that is for the fields to keep to."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, progress: bytes, producer: str) -> Self:
        """The place in a progress.

        Raises:
            FormatError: somebody else sent under the producer's name.
        """
        try:
            return msgspec.json.decode(progress, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(
                f"the progress of producer {producer!r} in the log, {progress[:60]!r}, is none of this connector ({error}): "
                f"give the connector another `name`"
            ) from error
