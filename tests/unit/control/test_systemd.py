from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vringd.control.systemd import notify


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_sent_to_the_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path if abstract else path)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + path if abstract else path)
        notify("READY=1")
        manager.setblocking(False)
        assert manager.recv(64) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nonexistent/notify", "vsock:2:1234"])
def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")
