"""Reads untrusted Arrow IPC streams, and checks the size of each message before Arrow decodes it.

A compressed buffer declares its decompressed size, and Arrow allocates the declared size. Without the check, a stream of a few KiB
could make Arrow allocate gigabytes.
"""

from __future__ import annotations

import pyarrow as pa

from tutti.data.frames.arrow_ipc import body_sizes
from tutti.errors import FormatError, TooLarge


def read_stream(data: bytes, raw_bytes_max: int, batches_max: int) -> pa.RecordBatch:
    """Return all records of a stream as one batch.

    Args:
        data: the whole stream.
        raw_bytes_max: limit of the decompressed bytes of all buffers together.
        batches_max: limit of the number of batches.

    Raises:
        FormatError: the bytes are not an Arrow IPC stream, or the stream has dictionaries; the message contains the batch's number.
        TooLarge: the stream exceeds `raw_bytes_max` or `batches_max`.
    """
    source = pa.py_buffer(data)
    try:
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(messages.read_next_message())
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise FormatError(f"the body is not an Arrow IPC stream: {_first_line(error)}") from error
    batches: list[pa.RecordBatch] = []
    raw = 0
    while True:
        number = len(batches) + 1
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"batch {number} of the stream is truncated or corrupt: {_first_line(error)}") from error
        if message.type != "record batch":
            raise FormatError(f"message {number} after the schema is a {message.type}: send only plain record batches")
        if number > batches_max:
            raise TooLarge(f"the stream has more than {batches_max} record batches: combine them into fewer")
        raw += body_sizes(memoryview(message.serialize()), 0).raw_bytes
        if raw > raw_bytes_max:
            raise TooLarge(f"the stream decompresses to {raw} bytes or more, above the limit of {raw_bytes_max}: split it")
        try:
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
            raise FormatError(f"batch {number} of the stream is malformed: {_first_line(error)}") from error
        batches.append(batch)
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return filled[0] if len(filled) == 1 else pa.Table.from_batches(filled).combine_chunks().to_batches()[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "unexpected end").splitlines()[0][:300]
