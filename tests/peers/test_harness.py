"""Running packaged programs, against QEMU's own vhost-user server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vringd.testing import blk_clients
from vringd.testing.peer_process import PeerProcess, socket_is_listening
from vringd.testing.peers import (
    PeerFailedError,
    PeerMissingError,
    missing_reason,
    peer_command,
    peer_version,
    run_peer,
)
from vringd.testing.qmp_client import QmpError
from vringd.testing.storage_daemon import StorageDaemon

from .images import DISK_SIZE, check_with_qemu_img

KIB = 1 << 10
MIB = 1 << 20

StartPeer = Callable[..., PeerProcess]


@pytest.fixture
def server(folder: Path, image: Path) -> Iterator[StorageDaemon]:
    with StorageDaemon(folder, image=image, num_queues=4) as daemon:
        yield daemon


def test_missing_program_says_how_to_get_it() -> None:
    reason = missing_reason("qemu-img", "no-such-program")
    assert reason == "no-such-program is not installed: run tools/setup-peers"
    with pytest.raises(PeerMissingError, match="setup-peers"):
        peer_command("no-such-program")


def test_versions_are_new_enough() -> None:
    assert int(peer_version("qemu-img").split()[2].split(".")[0]) >= 10
    assert peer_version("fio") >= "fio-3.39"


def test_shared_folder_has_the_same_path_inside(folder: Path) -> None:
    image = folder / "with,comma.img"
    run_peer("qemu-img", "create", "-q", "-f", "raw", str(image), "1M", share=[folder])
    assert image.stat().st_size == MIB


def test_failure_shows_what_was_printed(folder: Path) -> None:
    with pytest.raises(PeerFailedError, match=r"exit status 1\n.*No such file"):
        run_peer("qemu-img", "info", str(folder / "nothing"), share=[folder])


def test_time_limit_ends_the_program(folder: Path) -> None:
    with pytest.raises(PeerFailedError, match="not finished after"):
        run_peer("nbdkit", "-f", "-U", str(folder / "s"), "null", share=[folder], timeout=0.5)
    assert not socket_is_listening(folder / "s")


def test_server_is_waited_for_and_stopped_by_a_signal(folder: Path, start_peer: StartPeer) -> None:
    socket = folder / "nbd"
    process = start_peer("nbdkit", "-f", "-U", str(socket), "memory", "1M", socket=socket)
    assert socket_is_listening(socket)
    assert process.stop() == 0  # nbdkit's own end: the signal reached it, not a wrapper
    assert not socket_is_listening(socket)


def test_server_that_ends_early_is_reported(folder: Path, start_peer: StartPeer) -> None:
    process = start_peer("nbdkit", "-f", "-U", str(folder / "nbd"), "no-such-plugin")
    with pytest.raises(PeerFailedError, match="no-such-plugin"):
        process.wait_for_socket(folder / "nbd")


def test_program_dies_with_its_parent(folder: Path) -> None:
    command = peer_command("nbdkit", "-f", "-U", str(folder / "nbd"), "null", share=[folder])
    script = (
        "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while not socket_is_listening(folder / "nbd"):
            time.sleep(0.01)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/cmdline").exists() and _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not socket_is_listening(folder / "nbd")


def test_qemu_img_reads_and_writes_the_disk(server: StorageDaemon, image: Path) -> None:
    check_with_qemu_img(server.socket, image)


def test_qemu_io_checks_patterns(server: StorageDaemon, image: Path) -> None:
    blk_clients.qemu_io(
        server.socket,
        "write -P 0xab 4k 64k",
        "read -P 0xab 4k 64k",
        "write -z 128k 64k",
        "read -P 0 128k 64k",
        "discard 1M 1M",
        "writev -P 7 2M 4k 8k",
        "aio_write -P 9 4M 1M",
        "aio_flush",
        "flush",
    )
    content = image.read_bytes()
    assert content[4 * KIB : 68 * KIB] == b"\xab" * 64 * KIB
    assert content[2 * MIB : 2 * MIB + 12 * KIB] == b"\7" * 12 * KIB
    assert content[4 * MIB : 5 * MIB] == b"\x09" * MIB
    with pytest.raises(PeerFailedError, match="verification failed"):
        blk_clients.qemu_io(server.socket, "read -P 1 4k 64k")


def test_qemu_img_bench_counts(server: StorageDaemon, image: Path) -> None:
    result = blk_clients.bench(server.socket, requests=1000, depth=8)
    assert result.seconds > 0
    blk_clients.bench(
        server.socket, requests=256, depth=4, write=True, pattern=0x5A, flush_interval=64
    )
    assert image.read_bytes()[:MIB] == b"\x5a" * MIB


def test_nbdkit_bridge_copies(server: StorageDaemon, folder: Path, image: Path) -> None:
    with blk_clients.NbdBridge(server.socket, folder) as bridge:
        information = bridge.information()
        assert information["export-size"] == DISK_SIZE
        assert information["can_flush"]
        copy = folder / "copy.img"
        bridge.copy_to(copy)
        assert copy.read_bytes() == image.read_bytes()
        copy.write_bytes(bytes(DISK_SIZE))
        bridge.copy_from(copy)
        assert image.read_bytes() == bytes(DISK_SIZE)


def test_qmp_errors_and_events(server: StorageDaemon) -> None:
    with pytest.raises(QmpError, match="no-such-node") as caught:
        server.qmp.command("block_resize", node_name="no-such-node", size=MIB)
    assert caught.value.error_class == "GenericError"
    exports = server.qmp.command("query-block-exports")
    assert [export["type"] for export in exports] == ["vhost-user-blk"]
    server.qmp.command("block-export-del", id="export")
    event = server.qmp.wait_event("BLOCK_EXPORT_DELETED", timeout=10)
    assert event["data"]["id"] == "export"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
