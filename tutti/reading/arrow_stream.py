"""An Arrow IPC stream from a stranger, read with a look at each message before Arrow is let loose on it.

A compressed buffer says what it will become, and Arrow allocates that: a stream of a few KiB could take gigabytes.
"""

from __future__ import annotations

import pyarrow as pa

from tutti.data.frames.arrow_ipc import body_sizes
from tutti.errors import FormatError, TooLarge


def read_stream(data: bytes, raw_bytes_max: int, batches_max: int) -> pa.RecordBatch:
    """All records of a stream, as one batch.

    Args:
        data: the stream, whole.
        raw_bytes_max: bytes that its buffers may take together, decompressed.
        batches_max: how many batches it may have.

    Raises:
        FormatError: it is no such stream, or has dictionaries; the message names the batch.
        TooLarge: it would take more than `raw_bytes_max`, or has more batches.
    """
    source = pa.py_buffer(data)
    try:
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(messages.read_next_message())
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise FormatError(f"the body is no Arrow IPC stream: {_first_line(error)}") from error
    batches: list[pa.RecordBatch] = []
    raw = 0
    while True:
        number = len(batches) + 1
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"batch {number} of the stream is cut short or damaged: {_first_line(error)}") from error
        if message.type != "record batch":
            raise FormatError(f"message {number} behind the schema is a {message.type}: only plain record batches are taken")
        if number > batches_max:
            raise TooLarge(f"the stream has more than {batches_max} record batches: join them")
        raw += body_sizes(memoryview(message.serialize()), 0).raw_bytes
        if raw > raw_bytes_max:
            raise TooLarge(f"the stream takes {raw} bytes and more without compression; at most {raw_bytes_max} are taken")
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
    return (str(error).strip() or "it ends too early").splitlines()[0][:300]
