"""vringd's disks as packaged programs see them: qemu-img, qemu-io, nbdkit, through libblkio."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vringd.testing import blk_clients
from vringd.testing.peers import PeerFailedError
from vringd.testing.served_disk import ServedDisk, Vringd

from .images import DISK_SIZE, check_with_qemu_img

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def disk(folder: Path, image: Path) -> Iterator[ServedDisk]:
    disk = ServedDisk(folder, image, num_queues=4, iothreads=2)
    with Vringd(folder, [disk]) as daemon:
        yield disk
        log = daemon.output()
    assert "warning" not in log, log
    assert "error" not in log, log


def test_qemu_img_compares_and_converts(disk: ServedDisk) -> None:
    check_with_qemu_img(disk.socket, disk.image)


def test_qemu_io_reads_and_writes_patterns(disk: ServedDisk) -> None:
    blk_clients.qemu_io(
        disk.socket,
        "write -P 0xab 4k 64k",
        "read -P 0xab 4k 64k",
        "writev -P 7 2M 4k 8k 512",
        "readv -P 7 2M 512 8k 4k",
        "aio_write -P 9 4M 1M",
        "aio_write -P 10 5M 1M",
        "aio_flush",
        "aio_read -P 9 4M 1M",
        "aio_read -P 10 5M 1M",
        "aio_flush",
        "flush",
        "write -P 3 512 512",
        "write -f -P 4 1024 512",
        f"write -P 5 {DISK_SIZE - 512} 512",
    )
    content = disk.image.read_bytes()
    assert content[4 * KIB : 68 * KIB] == b"\xab" * 64 * KIB
    assert content[2 * MIB : 2 * MIB + 12 * KIB + 512] == b"\7" * (12 * KIB + 512)
    assert content[4 * MIB : 6 * MIB] == b"\x09" * MIB + b"\x0a" * MIB
    assert content[512:1536] == b"\3" * 512 + b"\4" * 512
    assert content[-512:] == b"\5" * 512
    with pytest.raises(PeerFailedError, match="verification failed"):
        blk_clients.qemu_io(disk.socket, "read -P 1 4k 64k")


def test_qemu_io_writes_zeroes(disk: ServedDisk) -> None:
    before = disk.image.read_bytes()
    full = disk.image.stat().st_blocks
    blk_clients.qemu_io(
        disk.socket,
        "write -z 1M 1M",
        "read -P 0 1M 1M",
        "write -z -u 2M 1M",
        "read -P 0 2M 1M",
        "write -z 3584k 1536",  # no multiple of what the file system's blocks are
    )
    content = disk.image.read_bytes()
    assert content[MIB : 3 * MIB] == bytes(2 * MIB)
    assert content[3584 * KIB :][:1536] == bytes(1536)
    assert content[: 1 * MIB] == before[: 1 * MIB]
    assert content[3584 * KIB + 1536 :] == before[3584 * KIB + 1536 :]
    assert (full - disk.image.stat().st_blocks) * 512 >= MIB - 64 * KIB  # -u: and unmaps


def test_qemu_io_discard_frees_host_blocks(disk: ServedDisk) -> None:
    before = disk.image.stat().st_blocks
    blk_clients.qemu_io(disk.socket, "discard 1M 4M", "read -P 0 1M 4M")
    assert (before - disk.image.stat().st_blocks) * 512 >= 4 * MIB - 64 * KIB


def test_access_beyond_the_end_is_refused(disk: ServedDisk) -> None:
    before = disk.image.read_bytes()
    with pytest.raises(PeerFailedError):
        blk_clients.qemu_io(disk.socket, f"write {DISK_SIZE} 512")
    blk_clients.qemu_io(disk.socket, "read 0 512")
    assert disk.image.read_bytes() == before


def test_qemu_img_bench_reads_and_writes(disk: ServedDisk) -> None:
    assert blk_clients.bench(disk.socket, requests=5000, depth=64).seconds > 0
    blk_clients.bench(
        *(disk.socket,),
        requests=512,
        depth=32,
        write=True,
        pattern=0x5A,
        flush_interval=64,
    )
    assert disk.image.read_bytes()[: 2 * MIB] == b"\x5a" * 2 * MIB


def test_nbdkit_bridge_copies(disk: ServedDisk, folder: Path) -> None:
    with blk_clients.NbdBridge(disk.socket, folder) as bridge:
        information = bridge.information()
        assert information["export-size"] == DISK_SIZE
        assert information["can_flush"]
        assert not information["is_read_only"]
        copy = folder / "copy.img"
        bridge.copy_to(copy)
        assert copy.read_bytes() == disk.image.read_bytes()
        content = os.urandom(DISK_SIZE)
        copy.write_bytes(content)
        bridge.copy_from(copy)
    assert disk.image.read_bytes() == content


def test_clients_come_one_after_the_other(disk: ServedDisk) -> None:
    for number in range(1, 6):
        blk_clients.qemu_io(disk.socket, f"write -P {number} 0 64k")
        assert blk_clients.disk_size(disk.socket) == DISK_SIZE
        blk_clients.qemu_io(disk.socket, f"read -P {number} 0 64k")


def test_grown_disk_is_seen_by_the_next_client(folder: Path, image: Path) -> None:
    disk = ServedDisk(folder, image)
    with Vringd(folder, [disk]) as daemon:
        assert blk_clients.disk_size(disk.socket) == DISK_SIZE
        os.truncate(image, 2 * DISK_SIZE)
        daemon.look_at_sizes()
        daemon.process.wait_until(lambda: "size changed" in daemon.output(), "message")
        assert blk_clients.disk_size(disk.socket) == 2 * DISK_SIZE
        blk_clients.qemu_io(disk.socket, f"write -P 1 {2 * DISK_SIZE - 4096} 4k")


def test_read_only_export_refuses_writes(folder: Path, image: Path) -> None:
    disk = ServedDisk(folder, image, writable=False)
    before = image.read_bytes()
    with Vringd(folder, [disk]):
        with pytest.raises(PeerFailedError, match=r"[Rr]ead.?only"):
            blk_clients.qemu_io(disk.socket, "write -P 1 0 4k")
        blk_clients.qemu_io(disk.socket, "read 0 4k", read_only=True)
        assert blk_clients.first_difference(disk.socket, image) is None
    assert image.read_bytes() == before


@pytest.mark.parametrize("num_queues", [1, 2, 64, 256])
def test_any_number_of_queues(folder: Path, image: Path, num_queues: int) -> None:
    disk = ServedDisk(folder, image, num_queues=num_queues, iothreads=min(num_queues, 3))
    with Vringd(folder, [disk]):
        blk_clients.qemu_io(disk.socket, "write -P 7 0 1M", "read -P 7 0 1M")
        assert image.read_bytes()[:MIB] == b"\7" * MIB
        assert blk_clients.first_difference(disk.socket, image) is None


@pytest.mark.parametrize("aio", ["io_uring", "native", "threads"])
@pytest.mark.parametrize("direct", ["on", "off"])
def test_every_way_to_the_file(folder: Path, image: Path, aio: str, direct: str) -> None:
    if aio == "native" and direct == "off":
        pytest.skip("not a way: aio=native needs cache.direct=on")
    disk = ServedDisk(folder, image, iothreads=1, node={"aio": aio, "cache.direct": direct})
    with Vringd(folder, [disk]):
        copy = folder / "copy.img"
        blk_clients.read_image(disk.socket, copy)
        assert copy.read_bytes() == image.read_bytes()
        blk_clients.qemu_io(
            disk.socket,
            "write -P 1 0 1M",
            "writev -P 2 1M 512 1k 4k 60k",
            "write -z 2M 64k",
            "discard 3M 1M",
            "flush",
            "read -P 1 0 1M",
            "read -P 0 2M 64k",
        )
        blk_clients.bench(disk.socket, requests=256, depth=32, write=True, pattern=9, size=4096)
    content = image.read_bytes()
    assert content[:MIB] == b"\x09" * MIB
    assert content[MIB:][: 65 * KIB + 512] == b"\2" * (65 * KIB + 512)
    assert content[2 * MIB :][: 64 * KIB] == bytes(64 * KIB)
