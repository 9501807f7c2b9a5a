"""A fake virtual machine: a front-end, and per queue memory and a driver that verifies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend

from .traffic import Traffic, guest_ram, running

PACKED = 1 << 34


class Machine:
    """Connected to the device at `path`, with `queues` running rings, until the end of `with`.

    Queue i has memory region `first + i` and works on that part of the disk.
    """

    def __init__(
        self,
        path: Path,
        *,
        queues: int = 4,
        first: int = 0,
        packed: bool = False,
        keeps: bool = True,
        size: int = 64,
        queue_type: type[DriverQueue] = DriverQueue,
        **driver: Any,
    ) -> None:
        with ExitStack() as stack:
            self.frontend = stack.enter_context(Frontend.connect(path))
            self.frontend.negotiate(features=~0 if packed else ~PACKED)
            self.rams = [stack.enter_context(guest_ram(first + i)) for i in range(queues)]
            for ram in self.rams:
                self.frontend.add_ram(ram)
            self.queues = [
                stack.enter_context(queue_type(ram, size, packed=packed)) for ram in self.rams
            ]
            for i, queue in enumerate(self.queues):
                self.frontend.attach(i, queue)
            self.traffics = [
                Traffic(queue, part=first + i, keeps=keeps, **driver)
                for i, queue in enumerate(self.queues)
            ]
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        self._load = running(self.traffics)
        try:
            self._load.__enter__()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            self._load.__exit__(kind, error, trace)
            for ram in self.rams:
                ram.check()

    @property
    def done(self) -> int:
        """Requests that have been completed, of all queues."""
        return sum(traffic.done for traffic in self.traffics)

    def assert_alive(self) -> None:
        """Every queue completes more requests."""
        for traffic in self.traffics:
            assert traffic.advances(), traffic.failure or "no request completes any more"
