"""Fixtures for tests with packaged programs on the other side."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vringd.testing.blk_clients import CLIENT_PROGRAMS
from vringd.testing.peer_process import PeerProcess
from vringd.testing.peers import missing_reason

from .images import DISK_SIZE

StartPeer = Callable[..., PeerProcess]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test below this folder; skips them when the programs are not installed."""
    reason = missing_reason("qemu-storage-daemon", *CLIENT_PROGRAMS)
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.peers)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def image(folder: Path) -> Path:
    """A raw image of DISK_SIZE random bytes."""
    path = folder / "disk.img"
    path.write_bytes(os.urandom(DISK_SIZE))
    return path


@pytest.fixture
def start_peer(folder: Path) -> Iterator[StartPeer]:
    """Starts a packaged program that sees `folder`, and ends it with the test.

    ``start_peer(program, *arguments, socket=PATH)`` waits until it listens on PATH.
    """
    with ExitStack() as stack:

        def start(program: str, *arguments: str, socket: Path | None = None) -> PeerProcess:
            log = Path(tempfile.mkstemp(dir=folder, prefix=f"{program}-", suffix=".log")[1])
            process = PeerProcess(program, *arguments, share=[folder], log=log)
            stack.enter_context(process)
            if socket is not None:
                process.wait_for_socket(socket)
            return process

        yield start
