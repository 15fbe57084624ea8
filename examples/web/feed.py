"""A web application of aiohttp: POST /readings commits a reading, and GET /readings streams all readings as server-sent events.

python examples/web/feed.py [PORT]                 $TUTTI_URL names the gateways; the default is that of `tutti dev`

The example needs aiohttp (extra `web` of Tutti).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from tutti import TuttiError
from tutti.aio import AsyncProducer, AsyncReader
from tutti.errors import install_remedy

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise SystemExit(f"this example needs {error.name}, which is not installed: {install_remedy('web')}") from error

TOPIC = "readings"
PRODUCER = web.AppKey("producer", AsyncProducer)


async def produce(app: web.Application) -> AsyncIterator[None]:
    """Open one producer for all requests."""
    async with AsyncProducer(delivery_timeout=10) as app[PRODUCER]:
        yield


async def post_reading(request: web.Request) -> web.Response:
    """Commit the body as one reading."""
    try:
        offset = await request.app[PRODUCER].send(TOPIC, await request.read())
    except TuttiError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    return web.json_response({"offset": offset}, status=201)


async def stream_readings(request: web.Request) -> web.StreamResponse:
    """Stream readings from an offset on. A browser that reconnects sends `Last-Event-ID`, so the stream has each reading once."""
    last = request.headers.get("Last-Event-ID")
    start = int(last) + 1 if last and last.isdecimal() else 0
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    # If the client disconnects, aiohttp cancels this coroutine or a write fails, and `async with` closes the reader.
    async with AsyncReader(topics=[TOPIC], start=start, follow=True, columns=["offset", "value"]) as reader:
        async for record in reader.records():
            # Each line of a record needs the field name. `bytes.splitlines` splits where a stream of events has line ends: at a
            # carriage return too, and at no other character.
            text = "\ndata: ".join(line.decode(errors="replace") for line in (record.value or b"").splitlines())
            await response.write(f"id: {record.offset}\ndata: {text}\n\n".encode())
    return response


app = web.Application()
app.cleanup_ctx.append(produce)
app.add_routes([web.post("/readings", post_reading), web.get("/readings", stream_readings)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8001, handler_cancellation=True)
