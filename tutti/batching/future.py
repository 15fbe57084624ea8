"""Receipts as futures: the methods that `concurrent.futures` and `asyncio` call on a receipt.

The fields of `concurrent.futures.Future` would make a receipt many times as large, and `send` many times as slow. A receipt
therefore only behaves as a Future, and creates the state of a Future when a caller first asks for that state.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Generator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from tutti.common.fork import after_fork
from tutti.errors import TuttiError, UsageError

if TYPE_CHECKING:
    from tutti.batching.receipt import Batch, Receipt

    _Future = concurrent.futures.Future[int]
else:
    _Future = object

# Guards the waits for all receipts. `concurrent.futures.wait` takes the locks of its futures one after another: separate locks of
# the batches could deadlock. The lock is reentrant, because a signal handler may wait while its thread holds the lock.
lock = threading.RLock()
_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _renew_after_fork() -> None:
    global lock  # noqa: PLW0603 - the old lock may be held by a thread that only the parent has
    lock = threading.RLock()


after_fork(_renew_after_fork)


def is_plain(callback: object) -> bool:
    """Return True if a callback can be called, and its call runs the function: no coroutine and no asynchronous generator."""
    # The flags recognise a plain function in a tenth of the time of the general check.
    if type(callback) is FunctionType and not callback.__code__.co_flags & _ASYNCHRONOUS and not callback.__dict__:
        return True
    functions = callback, getattr(callback, "__call__", None)  # noqa: B004 - the method itself, not whether it exists
    return callable(callback) and not any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in functions)


def check_callback(callback: object, what: str = "on_delivery") -> None:
    """Check the argument `on_delivery` of `send`, or another callback (`what`).

    Raises:
        UsageError: it is not a function, or is a coroutine function, which the I/O thread would call without effect.
    """
    if not callable(callback):
        raise UsageError(f"{what} must be a function, not {type(callback).__name__}")
    if not is_plain(callback):
        raise UsageError(f"{what} must be a plain function, not a coroutine function: in a coroutine, await the receipt instead")


class FutureState:
    """The state that `concurrent.futures.wait` and `as_completed` read of one receipt; it changes only under `lock`."""

    __slots__ = ("finished", "waiters")

    def __init__(self, finished: bool) -> None:
        self.finished = finished
        self.waiters: list[Any] = []

    def finish(self, receipt: Receipt) -> None:
        """Notify the waiters of the outcome."""
        with lock:
            self.finished = True
            for waiter in self.waiters:
                if receipt.error is None:
                    waiter.add_result(receipt)
                else:
                    waiter.add_exception(receipt)


def state_of(receipt: Receipt) -> FutureState:
    """Return the state of a receipt, and create it at the first call."""
    batch = receipt.batch
    with lock:
        if batch.futures is None:
            batch.futures = {}
        state = batch.futures.get(receipt.index)
        if state is None:
            state = batch.futures[receipt.index] = FutureState(batch.done)
            if not state.finished:
                batch.call_once(functools.partial(state.finish, receipt))
        return state


def _in_loop(fn: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a callback that calls `fn` in the event loop that runs now, or `fn` itself without a running loop.

    `asyncio.wait` registers a callback that must run in its loop, and that does not wake the loop from another thread.
    """
    asyncio = sys.modules.get("asyncio")  # without asyncio, no event loop runs
    loop = asyncio._get_running_loop() if asyncio is not None else None
    if loop is None:
        return fn

    def call(receipt: Any) -> None:
        # The loop may be closed before the record has an outcome; then nobody waits for the callback.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(fn, receipt)

    return call


class FutureMethods(_Future):
    """The methods of `concurrent.futures.Future` besides `done` and `result`, and `await`."""

    __slots__ = ()

    if TYPE_CHECKING:
        batch: Batch
        index: int
    else:

        @property
        def __class__(self) -> type:  # `isinstance` reads this attribute, and `asyncio.wrap_future` accepts only a Future
            return concurrent.futures.Future

        @property
        def _condition(self) -> Any:
            return lock

        @property
        def _state(self) -> str:
            return "FINISHED" if state_of(self).finished else "PENDING"

        @property
        def _waiters(self) -> list[Any]:
            return state_of(self).waiters

    def exception(self, timeout: float | None = None) -> TuttiError | None:
        """Wait for the outcome as `result` does. Return the error of a failed record, and None for a committed record.

        Raises:
            TimeoutError: the record has no outcome after `timeout` seconds.
        """
        try:
            self.result(timeout)
        except TuttiError as error:
            if not self.batch.done:
                raise  # an error of this call, such as a wrong timeout
            return error
        return None

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Call `fn(receipt)` when the outcome is known: in an I/O thread as `on_delivery`, or at once if the outcome is known.

        If this method is called in an event loop, `fn` runs in that loop.

        Args:
            fn: must not block. The client logs an exception that `fn` raises.

        Raises:
            UsageError: `fn` is not a function, or is a coroutine function.
        """
        check_callback(fn, "the callback of a receipt")
        self.batch.call_once(functools.partial(_in_loop(fn), self))

    def remove_done_callback(self, fn: Callable[[Self], object]) -> int:
        """Return 0: a callback cannot be removed. `asyncio.wait` calls this method at its end, when its callback has no effect."""
        return 0

    def cancel(self) -> bool:
        """Return False: a record that was sent cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False, because a record cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Return True while the record has no outcome."""
        return not self.batch.done

    def __await__(self) -> Generator[Any, None, int]:
        """Wait in the running event loop for the outcome, and return or raise it as `result` does."""
        if not self.batch.done:
            from tutti.common.loop_wakeups import wait_for_call  # noqa: PLC0415 - only asynchronous applications load asyncio

            yield from wait_for_call(self.batch)
        return self.result()  # returns or raises at once
