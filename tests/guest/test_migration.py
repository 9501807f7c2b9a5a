"""Live migration between two QEMUs, each with a vringd of its own on the same image."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserBlk, VhostUserDevice, VhostUserScsi
from vringd.testing.served_disk import ServedDisk, ServedScsi, Vringd

MIB = 1 << 20
NUM_QUEUES = 2

BootGuest = Callable[..., Guest]

# Reads back what it writes: a page of the guest that a read had filled, and that was not in
# the dirty log, would arrive with its old content. The rate leaves migration a chance.
VERIFY = (
    "until test -e /run/enough; do"
    " fio --name=verify --filename=/dev/DISK --rw=randwrite --bs=4k --size=8m --direct=1"
    f" --ioengine=libaio --iodepth=8 --numjobs={NUM_QUEUES} --offset_increment=16m"
    " --verify=crc32c --verify_backlog=64 --rate_iops=1000 --time_based --runtime=2"
    " --group_reporting || exit 1; done"
)

# Requests of the disk that have ended, in the words of a shell.
COMPLETED = "$(awk '{print $1 + $5}' /sys/block/DISK/stat)"


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
@pytest.mark.parametrize("kind", ["blk", "scsi"])
def test_verifying_job_moves_with_the_guest(
    folder: Path, boot_guest: BootGuest, kind: str, packed: bool
) -> None:
    node = "vda" if kind == "blk" else "sda"
    image = folder / "disk.img"
    image.touch()
    os.truncate(image, 64 * MIB)
    disks = {}
    for name in ("from", "to"):
        (folder / name).mkdir()
        disks[name] = served(folder / name, image, kind)
    with (
        Vringd(folder / "from", [disks["from"]]) as old,
        Vringd(folder / "to", [disks["to"]]) as new,
    ):
        source = boot_guest(device(disks["from"], packed), cpus=NUM_QUEUES)
        target = boot_guest(device(disks["to"], packed), cpus=NUM_QUEUES, incoming=True)
        job = source.start_command(VERIFY.replace("DISK", node))
        source.wait_for(f"test {COMPLETED} -gt 1000".replace("DISK", node))
        # A quarter of a second, the default, is little for emulated processors on a busy host.
        source.qmp.command("migrate-set-parameters", downtime_limit=2000)
        source.migrate_to(target)
        job = job.moved_to(target)
        assert job.is_running(), job.output_so_far()
        before = completed(target, node)
        target.wait_for(f"test {COMPLETED} -gt {before + 1000}".replace("DISK", node))
        target.output("touch /run/enough")
        result = job.wait(20)
        assert result.status == 0, result.output
        # What was written on either side is on the disk.
        target.output(f"mkfs.ext4 -q /dev/{node} && e2fsck -fn /dev/{node}")
        for daemon in (old, new):
            assert "broken" not in daemon.output()


def served(folder: Path, image: Path, kind: str) -> ServedDisk | ServedScsi:
    """Both have the image open at once, and never use it at once: QEMU sees to that."""
    options = {"locking": "off"}
    if kind == "scsi":
        return ServedScsi(folder, [image], num_queues=NUM_QUEUES, iothreads=2, node=options)
    return ServedDisk(folder, image, num_queues=NUM_QUEUES, iothreads=2, node=options)


def device(disk: ServedDisk | ServedScsi, packed: bool) -> VhostUserDevice:
    kind = VhostUserScsi if isinstance(disk, ServedScsi) else VhostUserBlk
    return kind("disk", disk.socket, num_queues=NUM_QUEUES, packed=packed)


def completed(guest: Guest, node: str) -> int:
    return int(guest.output(f"echo {COMPLETED}".replace("DISK", node)))
