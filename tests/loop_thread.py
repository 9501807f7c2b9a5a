"""An event loop in a thread of its own, so that tests of its servers may block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs from `start` to `stop`; what is left in the loop then is dropped."""

    def __init__(self, name: str = "control") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Run a coroutine in the loop, for `timeout` seconds at most."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)
