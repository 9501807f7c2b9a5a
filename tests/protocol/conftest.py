"""A served device and its front-end; no test may leave a descriptor open."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRam

from .fake_device import FakeDevice
from .server_thread import ServerThread, open_fds, pair


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    gc.collect()
    before = open_fds()
    yield
    gc.collect()
    after = open_fds()
    assert sorted(after.values()) == sorted(before.values())


@pytest.fixture
def device(no_leaked_descriptors: None) -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def served(device: FakeDevice) -> Iterator[tuple[ServerThread, Frontend]]:
    with pair(device) as both:
        yield both


@pytest.fixture
def server(served: tuple[ServerThread, Frontend]) -> ServerThread:
    return served[0]


@pytest.fixture
def frontend(served: tuple[ServerThread, Frontend]) -> Frontend:
    """Connected, with nothing said yet."""
    return served[1]


@pytest.fixture
def negotiated(frontend: Frontend) -> Frontend:
    """Connected, with everything but packed rings negotiated."""
    frontend.negotiate(features=~(1 << 34))
    return frontend


@pytest.fixture
def ram(no_leaked_descriptors: None) -> Iterator[GuestRam]:
    with GuestRam([1 << 20, 1 << 20]) as ram:
        yield ram


@pytest.fixture
def running(negotiated: Frontend, ram: GuestRam) -> Iterator[DriverQueue]:
    """Ring 0 of `negotiated`, in `ram`: split, of 16 entries, enabled."""
    negotiated.add_ram(ram)
    with DriverQueue(ram, 16) as queue:
        negotiated.attach(0, queue)
        yield queue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.sock"
