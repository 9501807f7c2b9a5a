"""Fixtures of the stress tests; every one of them checks that it leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.core.poller import io_uring_available

from .engine import Engine
from .ledger import assert_no_more_than, held

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test below this folder."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.stress)


@pytest.fixture(scope="session")
def seconds() -> float:
    """How long one test keeps the load up: VRINGD_STRESS_SECONDS, or a little over a second."""
    return float(os.environ.get("VRINGD_STRESS_SECONDS", "1.2"))


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Drivers and control plane share the GIL: hand it over often, so that they interleave."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True, scope="session")
def first_thread() -> None:
    """A sanitizer starts a thread of its own along with the first of the process."""
    thread = threading.Thread()
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = held()
    yield
    assert_no_more_than(before)


@pytest.fixture(params=["io_uring", "epoll"])
def poller(request: pytest.FixtureRequest) -> str:
    if request.param == "io_uring" and not io_uring_available():
        pytest.skip(
            "io_uring is forbidden here; allow it (kernel.io_uring_disabled=0 and no seccomp"
            " filter against it)"
        )
    return str(request.param)


@pytest.fixture
def engine(poller: str, nothing_left_behind: None) -> Iterator[Engine]:
    """Three IOThreads: one more than a small machine has CPUs, so they preempt each other."""
    with Engine(3, poller) as engine:
        yield engine
