"""A web application that takes orders and answers when they are durable: its 201 means on disk at every gateway, at this offset.

uvicorn --app-dir examples/web app:app             gateways are those of $TUTTI_URL, or the one of `tutti dev`

A client that closes its side of the connection after the request (`nc -N`) gets no answer: uvicorn drops such a connection. The
order may be committed. The HTTP connector answers such a client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, Field

from tutti import BufferFull, Producer, Reader, Receipt, TuttiError

URL = os.environ.get("TUTTI_URL", "tutti://127.0.0.1:7400")
TOPIC = "orders"


class Order(BaseModel):
    """What somebody orders."""

    order: int
    item: Annotated[str, Field(min_length=1, max_length=100)]
    quantity: Annotated[int, Field(ge=1, le=1000)] = 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One producer for all requests: it is thread-safe, and their records share batches."""
    # A full buffer is an answer to the client, not a wait that stops everybody; ten seconds are what a client waits.
    with await asyncio.to_thread(Producer, URL, on_full="raise", delivery_timeout=10) as app.state.producer:
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take(order: Order, request: Request) -> dict[str, int]:
    """Commit one order. 503 says that nobody knows whether it will be: ask again with the same number."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def delivered(error: Exception | None, receipt: Receipt) -> None:  # in the producer's own thread, which must not wait
        loop.call_soon_threadsafe(settle, error, receipt)

    def settle(error: Exception | None, receipt: Receipt) -> None:
        if done.cancelled():  # the client has gone; the order is in the log all the same
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(receipt.result())

    try:
        request.app.state.producer.send(TOPIC, order.model_dump_json().encode(), key=b"%d" % order.order, on_delivery=delivered)
        return {"offset": await done}
    except BufferFull as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    except TuttiError as error:  # Unknown: it may be in the log. Readers tell orders apart by their number
        raise HTTPException(503, str(error)) from error


@app.get("/orders")
def orders(start: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> dict[str, object]:
    """Orders from an offset on, and where to go on. It waits on a socket, so FastAPI runs it in a thread."""
    found: list[object] = []
    try:
        with Reader(URL, topics=[TOPIC], start=start, columns=["offset", "value"]) as reader:
            for record in reader.records():
                found.append({"offset": record.offset, **Order.model_validate_json(record.value or b"").model_dump()})
                if len(found) == limit:
                    break
            return {"orders": found, "next": reader.position}
    except TuttiError as error:
        raise HTTPException(503, str(error)) from error
