"""Producers and readers for asyncio: the same arguments as `Producer` and `Reader`, and no call that blocks the event loop.

from tutti.aio import AsyncProducer, AsyncReader

async with AsyncProducer("tutti://127.0.0.1:7400", producer="jfk-departures") as producer:
    offset = await producer.send("flights", b"...")

async with AsyncReader("tutti://127.0.0.1:7400", topics=["flights"], start=0) as reader:
    async for batch in reader:
        ...
"""

from tutti.aio.producer import AsyncProducer
from tutti.aio.reader import AsyncReader

__all__ = ["AsyncProducer", "AsyncReader"]
