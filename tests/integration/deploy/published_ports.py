"""Publishes ports as a container engine does: `python -m tests.integration.deploy.published_ports ADDRESS PORT...` listens on each
port of 127.0.0.1, and forwards each connection to the same port of the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of the stream."""
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def publish(address: str, ports: list[int]) -> None:
    """Listen on the ports until the process ends."""

    def handler(port: int) -> object:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                inside, outside = await asyncio.open_connection(address, port)
            except OSError:  # no process listens there
                writer.close()
                return
            await asyncio.gather(forward(reader, outside), forward(inside, writer))

        return connected

    servers = [await asyncio.start_server(handler(port), "127.0.0.1", port) for port in ports]  # type: ignore[arg-type]  # a closure
    print("published", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], [int(port) for port in sys.argv[2:]]))
