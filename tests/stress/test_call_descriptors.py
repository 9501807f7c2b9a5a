"""The call eventfd is replaced under load: no completion goes unnoticed."""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .engine import Engine
from .machine import Machine
from .traffic import repeat


@contextmanager
def relay(target: int) -> Iterator[int]:
    """An eventfd of which every signal is passed on to `target`."""
    source = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    end = os.eventfd(0, os.EFD_CLOEXEC)

    def pass_on() -> None:
        poller = select.poll()
        for fd in (source, end):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if source in ready:
                os.eventfd_read(source)
                os.eventfd_write(target, 1)
            elif end in ready:
                return

    thread = threading.Thread(target=pass_on, name="relay")
    thread.start()
    try:
        yield source
    finally:
        os.eventfd_write(end, 1)
        thread.join()
        os.close(source)
        os.close(end)


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
def test_no_completion_is_lost_when_the_call_descriptor_changes(
    engine: Engine, folder: Path, seconds: float, packed: bool
) -> None:
    path = engine.serve_disk("file", folder)
    pick = random.Random(5)
    with Machine(path, packed=packed) as machine:
        calls = [queue.call_fd for queue in machine.queues]
        with relay(calls[0]) as detour:

            def change() -> None:
                index = pick.randrange(len(calls))
                target = detour if index == 0 and pick.random() < 0.5 else calls[index]
                # The back-end must use a descriptor of its own: this one is closed at once.
                copy = os.dup(target)
                try:
                    machine.frontend.set_vring_call(index, copy)
                finally:
                    os.close(copy)

            repeat(seconds, change)
            machine.frontend.set_vring_call(0, calls[0])
            machine.assert_alive()
