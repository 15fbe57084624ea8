"""A web application that accepts orders: 201 means that the order is on disk at every member of the view, at the returned offset.

uvicorn --app-dir examples/web app:app             $TUTTI_URL names the gateways; the default is that of `tutti dev`

The example needs FastAPI (extra `web` of Tutti) and uvicorn (extra `gateway`).

uvicorn drops the connection of a client that closes its sending side after the request (`nc -N`). The client gets no answer, but
the order may be committed. The HTTP connector answers such a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from tutti import OffsetOutOfRange, TuttiError, UsageError
from tutti.aio import AsyncProducer, AsyncReader
from tutti.errors import install_remedy

try:
    from fastapi import FastAPI, HTTPException, Query, Request
    from pydantic import BaseModel, Field
except ModuleNotFoundError as error:
    raise SystemExit(f"this example needs {error.name}, which is not installed: {install_remedy('web')}") from error

TOPIC = "orders"


class Order(BaseModel):
    """An order of one customer."""

    order: int
    item: Annotated[str, Field(min_length=1, max_length=100)]
    quantity: Annotated[int, Field(ge=1, le=1000)] = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one producer for all requests: their records share batches."""
    # If the buffer is full, the request fails at once, and the other requests do not wait. A client waits at most ten seconds.
    async with AsyncProducer(on_full="raise", delivery_timeout=10) as app.state.producer:
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create_order(order: Order, request: Request) -> dict[str, int]:
    """Commit one order. After 503 the order may be committed: send it again with the same number."""
    producer: AsyncProducer = request.app.state.producer
    try:
        # If the client disconnects, the order stays in the log.
        return {"offset": await producer.send(TOPIC, order.model_dump_json().encode(), key=b"%d" % order.order)}
    except TuttiError as error:  # BufferFull, or Unknown: the order may be in the log. Readers detect repeats by the order's number
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error


@app.get("/orders")
async def list_orders(
    start: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, object]:
    """Return orders from an offset on, and the next offset."""
    found: list[object] = []
    try:
        async with AsyncReader(topics=[TOPIC], start=start, columns=["offset", "value"]) as reader:
            async for record in reader.records():
                found.append({"offset": record.offset, **Order.model_validate_json(record.value or b"").model_dump()})
                if len(found) == limit:
                    break
            return {"orders": found, "next": reader.position}
    except OffsetOutOfRange as error:
        raise HTTPException(416, str(error)) from error
    except UsageError:  # the topic exists from the first order on
        return {"orders": [], "next": start}
    except TuttiError as error:
        raise HTTPException(503, str(error)) from error
