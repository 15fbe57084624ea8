"""Calls in a thread of their own: blocking calls that must not wait for other work of the application.

`asyncio.to_thread` uses the default executor of the event loop. If the application has filled this executor with slow work, a call
through it waits for that work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def call_in_thread(call: Callable[[], Answer]) -> asyncio.Future[Answer]:
    """Start a thread that makes the call. Return the answer as a future of the running event loop.

    A cancelled future does not end the call. The thread ends with the call. The interpreter's exit does not wait for the thread.
    """
    answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()
    answer.set_running_or_notify_cancel()  # from here on, a cancelled wait cannot cancel the answer that the thread sets

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the future raises the error
            answer.set_exception(error)

    future = asyncio.wrap_future(answer)
    threading.Thread(target=run, name="tutti-call", daemon=True).start()
    return future
