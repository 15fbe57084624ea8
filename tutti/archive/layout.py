"""What an archive consists of: its marker, the manifests of its ranges, and how everything in it is named.

    archive.json                                               the marker: format, log
    ranges/FIRST-END.json                                      the manifest of the records [FIRST, END)
    data/ticks=A-B/FIRST-END-HASH.parquet                      records of a range: of one topic, or of all without a file

Offsets are of 20 digits, so that names are in the order of the log; A and B are the ticks of the first and the last record. HASH is
the beginning of the file's SHA-256: whoever writes the same writes the same file, and nobody writes over another one. A manifest
is a line of JSON and, on the next one, the SHA-256 of that line.

No directory names a topic. Engines take the value of a directory `topic=NAME` for the column's and guess its type: topic 007 became
the number 7, and `__HIVE_DEFAULT_PARTITION__` became null. Archives of earlier releases have such directories, and `data/topics/`
for the rest; readers go by the paths in the manifests.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from tutti import limits
from tutti.errors import Damaged, FormatError

FORMAT = 1
MARKER, RANGES, DATA = "archive.json", "ranges", "data"
_RANGE = re.compile(r"(\d{20})-(\d{20})\.json")
_HASH_CHARACTERS = 16
_DATA = re.compile(rf"(\d{{20}})-(\d{{20}})-[0-9a-f]{{{_HASH_CHARACTERS}}}\.parquet")

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A row group of a file.

    Attributes:
        first, last: offsets of its first and last record.
        records: how many it has.
        chunks: (byte, length, CRC32C) of each column chunk.
    """

    first: int
    last: int
    records: int
    chunks: tuple[tuple[int, int, int], ...]


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with records of a range, in the order of their offsets.

    Attributes:
        path: below the archive.
        bytes, sha256: size and SHA-256 of the file.
        raw_bytes: what its records take in memory.
        first, last: offsets of its first and last record.
        topics: records of each topic.
        time_min, time_max: smallest and largest timestamp, us UTC.
        tail: (length, CRC32C) of the footer at its end.
        groups: its row groups.
    """

    path: str
    bytes: int
    sha256: str
    raw_bytes: int
    first: int
    last: int
    topics: dict[str, int]
    time_min: int
    time_max: int
    tail: tuple[int, int]
    groups: tuple[Group, ...]

    @property
    def records(self) -> int:
        """How many it has."""
        return sum(self.topics.values())


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The records [first, end) of a log, whole.

    Attributes:
        format: of the archive.
        log: uuid of the log, hex.
        first, end: the range; never empty.
        tick_first, tick_last: ticks of the first and the last record.
        ticks: (number, offset) wherever the tick changes inside: of the records from the offset on that is the last tick.
        digest: of the range, as `tutti log digest` gives it.
        files: where its records are, each record in one.
    """

    format: int = FORMAT
    log: str
    first: int
    end: int
    tick_first: int
    tick_last: int
    ticks: tuple[tuple[int, int], ...] = ()
    digest: str
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(file.bytes for file in self.files)

    @property
    def raw_bytes(self) -> int:
        """What its records take in memory."""
        return sum(file.raw_bytes for file in self.files)

    @property
    def time_max(self) -> int:
        """Largest timestamp, us UTC."""
        return max(file.time_max for file in self.files)

    @property
    def name(self) -> str:
        """Where it stands below the archive."""
        return f"{RANGES}/{range_name(self.first, self.end)}"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at the root of an archive: its format, and the uuid (hex) of the one log that it is of."""

    format: int = FORMAT
    log: str


def range_name(first: int, end: int) -> str:
    """The name of the manifest of [first, end)."""
    return f"{first:020}-{end:020}.json"


def range_of(name: str) -> tuple[int, int] | None:
    """The range that a manifest of this name is of; None: it is no manifest's."""
    found = _RANGE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def data_name(ticks: tuple[int, int], span: tuple[int, int], sha256: str) -> str:
    """Return the path below the archive of a file of a range."""
    return f"{DATA}/ticks={ticks[0]}-{ticks[1]}/{span[0]:020}-{span[1]:020}-{sha256[:_HASH_CHARACTERS]}.parquet"


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest.

    Raises:
        FormatError: it is larger than a reader takes.
    """
    line = msgspec.json.encode(manifest)
    if len(line) > limits.ARCHIVE_MANIFEST_BYTES_MAX:
        raise FormatError(
            f"the manifest of [{manifest.first}, {manifest.end}) has {len(line)} bytes and at most "
            f"{limits.ARCHIVE_MANIFEST_BYTES_MAX} are taken: archive smaller ranges"
        )
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decode_manifest(data: bytes, where: str, name: str) -> Manifest:
    """The manifest of `where` (for messages), which stands under `name`.

    Raises:
        Damaged: it is not what was written.
        FormatError: it is of a newer release.
    """
    line, _, rest = data.partition(b"\n")
    if rest.strip() != hashlib.sha256(line).hexdigest().encode():
        raise Damaged(f"the manifest {where} is damaged: its SHA-256 is another one; {PUT_BACK}")
    _check_format(line, where)
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except _UNREADABLE as error:
        raise Damaged(f"the manifest {where} cannot be read ({error}); {PUT_BACK}") from error
    if range_name(manifest.first, manifest.end) != name or manifest.first >= manifest.end or not manifest.files:
        raise Damaged(f"the manifest {where} is that of [{manifest.first}, {manifest.end}): it was renamed; {PUT_BACK}")
    return manifest


def encode_marker(marker: Marker) -> bytes:
    """The bytes of a marker."""
    return msgspec.json.encode(marker) + b"\n"


def decode_marker(data: bytes, where: str) -> Marker:
    """The marker of the archive `where`.

    Raises:
        Damaged: it cannot be read.
        FormatError: it is of a newer release.
    """
    _check_format(data, where)
    try:
        return msgspec.json.decode(data, type=Marker)
    except _UNREADABLE as error:
        raise Damaged(f"{where}/{MARKER} cannot be read ({error}); {PUT_BACK_MARKER}") from error


def _check_format(data: bytes, where: str) -> None:
    try:
        told = msgspec.json.decode(data)
    except _UNREADABLE:
        return  # what reads it whole says what is wrong
    found = told.get("format") if isinstance(told, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise FormatError(f"{where} has format {found} and this release reads up to {FORMAT}: read it with a newer release")


def data_range_of(path: str) -> tuple[int, int] | None:
    """The range that a file below DATA was written for; None: its name is none that an archiver gives."""
    found = _DATA.fullmatch(path.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


PUT_BACK = "put it back from a copy, or, where the log still has the range, remove its manifest: the archiver archives it again"
PUT_BACK_MARKER = "put it back from a copy: it has the format and the uuid of the log, which each manifest has too"
