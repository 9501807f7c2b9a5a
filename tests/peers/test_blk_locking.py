"""vringd and QEMU's programs refuse each other's images, and share what may be shared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.testing.guest_machine import this_machine
from vringd.testing.peer_process import PeerProcess
from vringd.testing.peers import PeerFailedError, run_peer
from vringd.testing.qmp_client import QmpClient
from vringd.testing.served_disk import ServedDisk, Vringd, run_vringd
from vringd.testing.storage_daemon import StorageDaemon

MIB = 1 << 20

StartPeer = Callable[..., PeerProcess]


@pytest.fixture
def image(folder: Path) -> Path:
    path = folder / "disk.img"
    path.write_bytes(bytes(MIB))
    return path


def qemu_io(image: Path, *options: str, command: str) -> str:
    return run_peer(
        *("qemu-io", *options, "-f", "raw", "-c", command, str(image)), share=[image.parent]
    ).stdout


def refusal(disk: ServedDisk) -> str:
    """The one line with which vringd refuses to serve the disk; no socket is left behind."""
    done = run_vringd("serve", *disk.arguments)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert not disk.socket.exists()
    (line,) = done.stderr.splitlines()
    return line


def test_qemu_refuses_an_image_that_vringd_writes(folder: Path, image: Path) -> None:
    with Vringd(folder, [ServedDisk(folder, image)]):
        with pytest.raises(PeerFailedError, match="lock"):
            qemu_io(image, command="write -P 1 0 4k")
        assert image.read_bytes() == bytes(MIB)
        qemu_io(image, "-r", command="read -P 0 0 4k")  # that minds no writer
    qemu_io(image, command="write -P 1 0 4k")  # the lock has gone with the daemon
    assert image.read_bytes()[:4096] == b"\1" * 4096


def test_lock_goes_with_a_killed_daemon(folder: Path, image: Path) -> None:
    with Vringd(folder, [ServedDisk(folder, image)]) as daemon:
        daemon.kill()
        qemu_io(image, command="write -P 1 0 4k")


def test_image_of_a_read_only_disk_is_shared_with_readers(folder: Path, image: Path) -> None:
    disk = ServedDisk(folder, image, writable=False, node={"read-only": "on"})
    with Vringd(folder, [disk]):
        qemu_io(image, "-r", command="read -P 0 0 4k")
        with pytest.raises(PeerFailedError, match="lock"):
            qemu_io(image, command="write -P 1 0 4k")


def test_vringd_refuses_an_image_that_qemu_writes(folder: Path, image: Path) -> None:
    with StorageDaemon(folder, image=image):
        line = refusal(ServedDisk(folder, image))
        assert re.match(
            rf"vringd: error: --blockdev node-name=disk: cannot lock '{re.escape(str(image))}': "
            r"another program has it open",
            line,
        )
        refusal(ServedDisk(folder, image, writable=False, node={"read-only": "on"}))
    with Vringd(folder, [ServedDisk(folder, image)]):
        pass


def test_virtual_machine_and_vringd_refuse_each_others_image(
    folder: Path, image: Path, start_peer: StartPeer
) -> None:
    machine = this_machine()
    monitor = folder / "qmp"
    disk = ServedDisk(folder, image)

    def start_reader() -> PeerProcess:
        """A machine, not yet running, whose disk must not change under it."""
        return start_peer(
            *(machine.program, "-machine", machine.machine, "-S", "-nodefaults"),
            *("-display", "none", "-qmp", f"unix:{monitor},server=on,wait=off"),
            *("-drive", f"file={image},format=raw,if=none,id=d,readonly=on"),
            *("-device", "virtio-blk-pci,drive=d"),
        )

    with Vringd(folder, [disk]):
        refused = start_reader()
        assert refused.wait(20) == 1
        assert "lock" in refused.output()
    with start_reader() as running:
        running.wait_for_socket(monitor)
        QmpClient(monitor).close()  # it answers when all its devices are there
        assert "another program has it open and does not share it" in refusal(disk)
        reader = ServedDisk(folder, image, writable=False, node={"read-only": "on"})
        with Vringd(folder, [reader]):
            pass


def test_vringd_reads_along_without_a_lock_when_told_to(folder: Path, image: Path) -> None:
    node = {"read-only": "on", "force-share": "on"}
    with (
        StorageDaemon(folder, image=image),
        Vringd(folder, [ServedDisk(folder, image, writable=False, node=node)]),
    ):
        pass


def test_second_vringd_refuses_the_image_and_the_socket(folder: Path, image: Path) -> None:
    other = folder / "other.img"
    other.write_bytes(bytes(MIB))
    with Vringd(folder, [ServedDisk(folder, image)]) as first:
        assert "cannot lock" in refusal(ServedDisk(folder, image, name="second"))
        done = run_vringd("serve", *ServedDisk(folder, other).arguments)
        assert done.returncode == 1
        assert "in use by a running server" in done.stderr
        first.process.check_running()
