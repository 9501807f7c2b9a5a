"""The daemon is killed under a guest's load and started again: nothing is lost or mixed up.

QEMU connects again and hands over the inflight buffer, in which the new daemon finds the
requests that the old one had taken and not answered (vhost-user specification, "Inflight I/O
tracking").
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserBlk, VhostUserScsi
from vringd.testing.guest_job import GuestJob
from vringd.testing.served_disk import ServedDisk, ServedScsi, Vringd

MIB = 1 << 20
NUM_QUEUES = 4
KILLS = 6
JOB_SECONDS = 10
DEPTH = 32

# Each job writes its part at random over and over and reads back what it wrote last.
VERIFY = (
    "fio --name=verify --filename=/dev/DISK --rw=randwrite --bsrange=512-64k --size=4m --direct=1"
    f" --ioengine=libaio --iodepth={DEPTH} --numjobs={NUM_QUEUES} --offset_increment=8m"
    " --cpus_allowed=0-3 --cpus_allowed_policy=split --verify=crc32c --verify_backlog=256"
    f" --time_based --runtime={JOB_SECONDS} --group_reporting"
)

# Flushes are slow, so that the requests after them are answered first: a daemon that only
# looked at the rings' indices would then forget some.
FLUSH = (
    "fio --name=flush --filename=/dev/DISK --offset=40m --rw=randwrite --bs=4k --size=1m --direct=1"
    f" --ioengine=psync --fsync=1 --numjobs={NUM_QUEUES} --offset_increment=1m"
    " --cpus_allowed=0-3 --cpus_allowed_policy=split"
    f" --time_based --runtime={JOB_SECONDS} --group_reporting"
)


@dataclass(frozen=True)
class Running:
    """A guest whose disk comes back after a restart of the daemon; disk: its name there."""

    guest: Guest
    vringd: Vringd
    disk: str

    def restart(self, pause: float = 0.0) -> None:
        """Kills the daemon and, `pause` seconds later, starts it again."""
        self.vringd.kill()
        time.sleep(pause)
        self.vringd.start()

    def completed(self) -> int:
        """Requests of the guest's disk that have ended."""
        counters = self.guest.output(f"cat /sys/block/{self.disk}/stat").split()
        return int(counters[0]) + int(counters[4])


@pytest.fixture(scope="module", params=["blk-split", "blk-packed", "scsi-split", "scsi-packed"])
def running(request: pytest.FixtureRequest, module_folder: Path) -> Iterator[Running]:
    kind, layout = request.param.split("-")
    folder = module_folder / request.param
    folder.mkdir()
    image = folder / "disk.img"
    image.touch()
    os.truncate(image, 64 * MIB)
    served: ServedDisk | ServedScsi
    if kind == "blk":
        served = ServedDisk(folder, image, num_queues=NUM_QUEUES, iothreads=2)
    else:
        served = ServedScsi(folder, [image], num_queues=NUM_QUEUES, iothreads=2)
    device = (VhostUserBlk if kind == "blk" else VhostUserScsi)(
        *("disk", served.socket),
        num_queues=NUM_QUEUES,
        packed=layout == "packed",
        reconnect_ms=20,
    )
    disk = "vda" if kind == "blk" else "sda"
    with ExitStack() as stack:
        vringd = stack.enter_context(Vringd(folder, [served]))
        guest = stack.enter_context(Guest([device], cpus=NUM_QUEUES))
        guest.wait_for(f"test -b /dev/{disk}")
        yield Running(guest, vringd, disk)


def test_verifying_job_outlives_kills_of_the_daemon(running: Running) -> None:
    job = running.guest.start_command(VERIFY.replace("DISK", running.disk))
    flushes = running.guest.start_command(FLUSH.replace("DISK", running.disk))
    for number in range(KILLS):
        wait_for_progress(running, job)
        running.restart(pause=0.1 * (number % 2))
        assert "not tracked" not in running.vringd.output()
    wait_for_progress(running, job)
    result = job.wait(JOB_SECONDS + 30)
    assert result.status == 0, result.output
    assert "verify: bad" not in result.output
    assert flushes.wait(30).status == 0
    assert "I/O error" not in running.guest.console()


def test_file_system_outlives_kills_of_the_daemon(running: Running) -> None:
    guest = running.guest
    disk = f"/dev/{running.disk}"
    guest.output(f"mkfs.ext4 -q {disk} && mount {disk} /mnt")
    job = guest.start_command("for n in 1 2 3; do cp -r /usr/bin /mnt/$n; sync; done")
    for _ in range(3):
        time.sleep(0.1)
        running.restart()
    result = job.wait(30)
    assert result.status == 0, result.output
    guest.output(f"umount /mnt && mount -o ro {disk} /mnt")
    sums = "find . -type f | sort | xargs md5sum"
    original = guest.output(f"cd /usr/bin; {sums}")
    for copy in (1, 2, 3):
        assert guest.output(f"cd /mnt/{copy}; {sums}") == original
    guest.output(f"umount /mnt && e2fsck -fn {disk}")


def test_requests_wait_while_there_is_no_daemon(running: Running) -> None:
    guest = running.guest
    running.vringd.kill()
    job = guest.start_command(f"echo waited | dd of=/dev/{running.disk} bs=512 conv=sync,fsync")
    time.sleep(0.5)
    assert job.is_running()
    running.vringd.start()
    assert job.wait(20).status == 0
    assert guest.output(f"head -n 1 /dev/{running.disk}") == "waited"


def test_reset_after_a_restart(running: Running) -> None:
    running.restart()
    running.guest.reset()
    running.guest.output(f"dd if=/dev/{running.disk} of=/dev/null bs=64k count=64")


def wait_for_progress(running: Running, job: GuestJob) -> None:
    """Waits until the job, still running, has had some hundred more answers."""
    target = running.completed() + 300
    deadline = time.monotonic() + 20
    while running.completed() < target:
        assert job.is_running(), job.output_so_far()
        assert time.monotonic() < deadline, running.vringd.output()
        time.sleep(0.02)
