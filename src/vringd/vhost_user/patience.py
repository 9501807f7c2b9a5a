"""Waiting for the data plane, however long it takes, without doing so in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_patiently(
    work: Coroutine[Any, Any, T], seconds: float, report: Callable[[float], None]
) -> T:
    """The result of `work`; calls `report` with the seconds waited every `seconds`.

    When the caller is cancelled the work goes on: a queue that is half handed over would be
    neither here nor there.
    """
    task = asyncio.ensure_future(work)
    waited = 0.0
    while True:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        waited += seconds
        report(waited)
