"""The socket: who may connect, who comes next, and what is left of it afterwards."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Disconnected, Frontend, FrontendError
from vringd.testing.memory import GuestRam
from vringd.vhost_user.errors import SocketError

from .fake_device import PACKED, FakeDevice
from .server_thread import ServerThread, until
from .test_rings import echo


@pytest.fixture(params=[0, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_only_the_owner_may_connect_whatever_the_umask(
    umask: None, device: FakeDevice, path: Path
) -> None:
    with ServerThread(device, path=path):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600


def test_socket_is_removed_at_the_end(device: FakeDevice, path: Path) -> None:
    with ServerThread(device, path=path):
        assert path.is_socket()
    assert not path.exists()


def test_stale_socket_is_replaced(device: FakeDevice, path: Path) -> None:
    listening(path).close()
    with ServerThread(device, path=path), Frontend.connect(path) as frontend:
        assert frontend.get_queue_num() == 4


def test_socket_of_a_running_server_is_left_alone(device: FakeDevice, path: Path) -> None:
    with ServerThread(device, path=path), Frontend.connect(path) as frontend:
        frontend.set_owner()
        with (
            pytest.raises(SocketError, match=r"vm\.sock is in use by a running server"),
            ServerThread(FakeDevice(), path=path),
        ):
            pass
        assert frontend.get_queue_num() == 4


def test_file_that_is_no_socket_is_left_alone(device: FakeDevice, path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketError, match="exists and is not a socket"):
        ServerThread(device, path=path).__enter__()
    assert path.read_text() == "precious"


def test_socket_of_a_successor_is_not_removed(device: FakeDevice, path: Path) -> None:
    with ServerThread(device, path=path):
        path.unlink()
        successor = listening(path)
    with successor:
        assert path.is_socket()


def test_removed_socket_does_not_disturb_the_end(device: FakeDevice, path: Path) -> None:
    with ServerThread(device, path=path):
        path.unlink()


@pytest.mark.parametrize(
    ("name", "message"),
    [("x" * 120, "longer than 107 bytes"), ("none/vm.sock", "No such file or directory")],
)
def test_impossible_path_is_explained(
    device: FakeDevice, tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(SocketError, match=message):
        ServerThread(device, path=tmp_path / name).__enter__()


def test_inherited_listening_socket_serves_several(device: FakeDevice, path: Path) -> None:
    with ServerThread(device, fd=listening(path).detach()):
        for _ in range(3):
            with Frontend.connect(path) as frontend:
                assert frontend.get_queue_num() == 4
    assert path.exists()  # it belongs to whoever made it


def test_inherited_connected_socket_serves_one(device: FakeDevice) -> None:
    ours, theirs = socket.socketpair()
    with ServerThread(device, fd=theirs.detach()) as server:
        with Frontend(ours) as frontend:
            assert frontend.get_queue_num() == 4
        server.run(server.server.wait())


def test_descriptor_of_another_kind_is_explained(device: FakeDevice) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    lonely = socket.socket(socket.AF_UNIX)
    event = os.eventfd(0)
    try:
        for fd in (left.fileno(), lonely.fileno(), event):
            with pytest.raises(SocketError, match=f"descriptor {fd} is not a"):
                ServerThread(device, fd=fd).__enter__()
            os.fstat(fd)  # still the caller's
    finally:
        for sock in (left, right, lonely):
            sock.close()
        os.close(event)


def test_front_end_may_come_back(ram: GuestRam, device: FakeDevice, path: Path) -> None:
    with ServerThread(device, path=path), DriverQueue(ram, 16) as queue:
        for n in range(3):
            with Frontend.connect(path) as frontend:
                frontend.negotiate(features=~PACKED)
                frontend.add_ram(ram)
                frontend.attach(0, queue, base=n)
                assert echo(ram, queue) == b"hello"
        assert until(lambda: device.queues == {})


def test_second_front_end_waits_for_the_first_to_go(
    device: FakeDevice, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vringd.vhost_user")
    with ServerThread(device, path=path):
        first = Frontend.connect(path)
        assert first.get_queue_num() == 4
        with Frontend.connect(path) as second, Frontend.connect(path) as third:
            assert until(lambda: "another front-end waits" in caplog.text)
            second.send(17)  # GET_QUEUE_NUM
            assert first.get_queue_num() == 4
            first.close()
            assert second.receive().payload == struct.pack("=Q", 4)
            second.close()
            assert third.get_queue_num() == 4


def test_end_of_the_server_drains_and_disconnects(
    ram: GuestRam, device: FakeDevice, path: Path
) -> None:
    with ServerThread(device, path=path) as server, Frontend.connect(path) as frontend:
        frontend.negotiate(features=~PACKED)
        frontend.add_ram(ram)
        with DriverQueue(ram, 16) as queue:
            frontend.attach(0, queue)
            server.run(server.server.close())
            assert device.events == [("start", 0), ("stop", 0)]
            with pytest.raises(Disconnected):
                frontend.get_queue_num()
    assert device.on_config_change is None
    assert device.on_queue_broken is None


def test_each_front_end_is_logged(
    device: FakeDevice, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vringd.vhost_user")
    with ServerThread(device, path=path), Frontend.connect(path) as frontend:
        frontend.get_queue_num()
        pid = os.getpid()
    assert [r.getMessage() for r in caplog.records] == [
        f"export e0: front-end (pid {pid}): connected",
        f"export e0: front-end (pid {pid}): disconnected",
    ]


def test_front_end_that_does_not_read_its_replies_does_not_hinder_the_end(
    device: FakeDevice, path: Path
) -> None:
    def flood(frontend: Frontend) -> None:
        while True:
            frontend.send(17)

    with (
        ServerThread(device, path=path),
        Frontend.connect(path, timeout=0.2) as frontend,
        pytest.raises(FrontendError, match="does not read"),
    ):
        flood(frontend)
