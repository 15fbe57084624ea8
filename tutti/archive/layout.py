"""Layout of an archive: its marker, the manifests of its ranges, and all file names.

    archive.json                                               the marker: format, log
    ranges/FIRST-END.json                                      the manifest of the records [FIRST, END)
    data/ticks=A-B/FIRST-END-HASH.parquet                      records of a range: one topic, or all topics without their own file

Offsets in names have 20 digits, so that names sort in the order of the log. The numbers in `ticks=A-B` are the ticks of the first
and the last record. HASH is the start of the file's SHA-256, so that files with different content have different names. A manifest
is one line of JSON, followed by a line with the SHA-256 of this JSON.

No directory name contains a topic, because query engines read `topic=NAME` as a column value and guess its type: topic 007 became
the number 7, and topic `__HIVE_DEFAULT_PARTITION__` became null. Archives of earlier releases do have directories `topic=NAME` and
`data/topics/`. Readers support these directories, because they use the paths in the manifests.
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
        records: number of records.
        chunks: position in the file, length and CRC32C of each column chunk.
    """

    first: int
    last: int
    records: int
    chunks: tuple[tuple[int, int, int], ...]


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with records of a range, in the order of their offsets.

    Attributes:
        path: path below the archive.
        bytes, sha256: size and SHA-256 of the file.
        raw_bytes: size of the file's records in memory.
        first, last: offsets of its first and last record.
        topics: number of records of each topic.
        time_min, time_max: smallest and largest timestamp, us UTC.
        tail: length and CRC32C of the footer at the end of the file.
        groups: row groups of the file.
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
        """The number of records."""
        return sum(self.topics.values())


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of an archived range: all records [first, end) of a log.

    Attributes:
        format: format of the archive.
        log: uuid of the log, hex.
        first, end: the range; never empty.
        tick_first, tick_last: ticks of the first and the last record.
        ticks: number of each further tick, and offset of the first record after it.
        digest: digest of the range, as `tutti log digest` prints it.
        files: files with the records; each record is in exactly one file.
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
        """Size of all its files."""
        return sum(file.bytes for file in self.files)

    @property
    def raw_bytes(self) -> int:
        """Size of its records in memory."""
        return sum(file.raw_bytes for file in self.files)

    @property
    def time_max(self) -> int:
        """Largest timestamp, us UTC."""
        return max(file.time_max for file in self.files)

    @property
    def name(self) -> str:
        """The path of the manifest below the archive."""
        return f"{RANGES}/{range_name(self.first, self.end)}"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Marker at the root of an archive: its format, and the uuid (hex) of its log."""

    format: int = FORMAT
    log: str


def range_name(first: int, end: int) -> str:
    """Return the name of the manifest of [first, end)."""
    return f"{first:020}-{end:020}.json"


def range_of(name: str) -> tuple[int, int] | None:
    """Return the range in a manifest's name, or None for other names."""
    found = _RANGE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def data_name(ticks: tuple[int, int], span: tuple[int, int], sha256: str) -> str:
    """Return the path of a range's file, relative to the archive."""
    return f"{DATA}/ticks={ticks[0]}-{ticks[1]}/{span[0]:020}-{span[1]:020}-{sha256[:_HASH_CHARACTERS]}.parquet"


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest.

    Raises:
        FormatError: the manifest is larger than readers accept.
    """
    line = msgspec.json.encode(manifest)
    if len(line) > limits.ARCHIVE_MANIFEST_BYTES_MAX:
        raise FormatError(
            f"the manifest of [{manifest.first}, {manifest.end}) has {len(line)} bytes, above the limit of "
            f"{limits.ARCHIVE_MANIFEST_BYTES_MAX}: archive smaller ranges"
        )
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decode_manifest(data: bytes, where: str, name: str) -> Manifest:
    """Decode a manifest, and check it against its file name `name`. Error messages show its location `where`.

    Raises:
        Damaged: the manifest is corrupt.
        FormatError: a newer release wrote the manifest.
    """
    line, _, rest = data.partition(b"\n")
    if rest.strip() != hashlib.sha256(line).hexdigest().encode():
        raise Damaged(f"the manifest {where} is corrupt: its SHA-256 does not match; {RESTORE_HINT}")
    _check_format(line, where)
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except _UNREADABLE as error:
        raise Damaged(f"the manifest {where} cannot be read ({error}); {RESTORE_HINT}") from error
    if range_name(manifest.first, manifest.end) != name or manifest.first >= manifest.end or not manifest.files:
        raise Damaged(f"the manifest {where} describes [{manifest.first}, {manifest.end}): it was renamed; {RESTORE_HINT}")
    return manifest


def encode_marker(marker: Marker) -> bytes:
    """Encode a marker."""
    return msgspec.json.encode(marker) + b"\n"


def decode_marker(data: bytes, where: str) -> Marker:
    """Decode the marker of an archive. Error messages show the archive's location `where`.

    Raises:
        Damaged: the marker is corrupt.
        FormatError: a newer release wrote the marker.
    """
    _check_format(data, where)
    try:
        return msgspec.json.decode(data, type=Marker)
    except _UNREADABLE as error:
        raise Damaged(f"{where}/{MARKER} cannot be read ({error}); {RESTORE_MARKER_HINT}") from error


def _check_format(data: bytes, where: str) -> None:
    try:
        fields = msgspec.json.decode(data)
    except _UNREADABLE:
        return  # the caller decodes all fields, and then raises the error with its cause
    found = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise FormatError(f"{where} has format {found}, but this release supports up to format {FORMAT}: use a newer release")


def data_range_of(path: str) -> tuple[int, int] | None:
    """Return the range [first, end) in the name of a Parquet file, or None for a name that archivers do not use."""
    found = _DATA.fullmatch(path.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


RESTORE_HINT = "restore it from a copy, or, if the log still has the range, remove its manifest: the archiver archives it again"
RESTORE_MARKER_HINT = f"restore {MARKER} from a copy: it has the format and the uuid of the log, which each manifest also has"
