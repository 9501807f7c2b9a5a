"""Fixtures for tests that boot a Linux guest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserDevice
from vringd.testing.guest_machine import guest_missing_reason
from vringd.testing.peers import missing_reason

BootGuest = Callable[..., Guest]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test below this folder boots a guest: marks it, with a longer time limit."""
    reason = guest_missing_reason() or missing_reason("qemu-storage-daemon")
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.guest)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """As `folder`, for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="vringd-test-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def boot_guest() -> Iterator[BootGuest]:
    """Boots guests that are ended with the test: ``boot_guest(device, ..., cpus=2)``."""
    with ExitStack() as stack:

        def boot(*devices: VhostUserDevice, **options: object) -> Guest:
            return stack.enter_context(Guest(devices, **options))  # type: ignore[arg-type]

        yield boot
