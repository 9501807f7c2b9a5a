"""One disk with four queues on two IOThreads in a Linux guest: what a guest does with disks.

The tests of a ring format share one guest. Each leaves the disk as it likes and assumes
nothing about its content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserBlk
from vringd.testing.served_disk import ServedDisk, Vringd

MIB = 1 << 20
NUM_QUEUES = 4
IOTHREADS = 2
DISK_SIZE = 128 * MIB
SERIAL = "serial-0123456789abc"  # 20 bytes, the most there is room for


@dataclass(frozen=True)
class Running:
    """A guest on a vringd disk."""

    guest: Guest
    vringd: Vringd
    image: Path

    def allocated(self) -> int:
        """Bytes the image occupies on the host."""
        return self.image.stat().st_blocks * 512

    def interrupts(self, queue: int) -> int:
        line = self.guest.output(f"grep -E 'virtio[0-9]+-req.{queue}$' /proc/interrupts")
        return sum(int(word) for word in line.split()[1 : 1 + NUM_QUEUES])


@pytest.fixture(scope="module", params=["split", "packed"])
def running(request: pytest.FixtureRequest, module_folder: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        image = module_folder / "disk.img"
        image.touch()
        os.truncate(image, DISK_SIZE)
        disk = ServedDisk(
            *(module_folder, image),
            num_queues=NUM_QUEUES,
            iothreads=IOTHREADS,
            export={"serial": SERIAL},
        )
        vringd = stack.enter_context(Vringd(module_folder, [disk]))
        device = VhostUserBlk(
            *("disk", disk.socket),
            num_queues=NUM_QUEUES,
            packed=request.param == "packed",
        )
        guest = stack.enter_context(Guest([device], cpus=NUM_QUEUES))
        yield Running(guest, vringd, image)


def test_ring_format_is_the_chosen_one(running: Running, request: pytest.FixtureRequest) -> None:
    features = running.guest.output("cat /sys/block/vda/device/features")
    assert features[34] == ("1" if "packed" in request.node.name else "0")
    assert "broken" not in running.vringd.output()


def test_guest_sees_the_disk_as_configured(running: Running) -> None:
    guest = running.guest
    assert guest.output("cat /sys/block/vda/serial") == SERIAL
    assert int(guest.output("cat /sys/block/vda/size")) * 512 == running.image.stat().st_size
    assert guest.output("cat /sys/block/vda/ro") == "0"
    assert guest.output("ls /sys/block/vda/mq").split() == ["0", "1", "2", "3"]
    assert guest.output("cat /sys/block/vda/queue/logical_block_size") == "512"
    assert int(guest.output("cat /sys/block/vda/queue/discard_max_bytes")) > 0
    assert int(guest.output("cat /sys/block/vda/queue/write_zeroes_max_bytes")) > 0


def test_fio_verifies_on_every_queue(running: Running) -> None:
    before = [running.interrupts(queue) for queue in range(NUM_QUEUES)]
    running.guest.output(
        "fio --name=verify --filename=/dev/vda --rw=randwrite --bsrange=512-64k --size=8m"
        " --direct=1 --ioengine=libaio --iodepth=16 --numjobs=4 --offset_increment=8m"
        " --cpus_allowed=0-3 --cpus_allowed_policy=split --verify=crc32c --do_verify=1"
        " --group_reporting",
        timeout=120,
    )
    after = [running.interrupts(queue) for queue in range(NUM_QUEUES)]
    assert all(new > old for old, new in zip(before, after, strict=True)), (before, after)


def test_both_iothreads_work(running: Running) -> None:
    def switches() -> dict[str, int]:
        """How often each thread of the daemon has run."""
        tasks = Path(f"/proc/{running.vringd.process.pid}/task").iterdir()
        return {task.name: int((task / "schedstat").read_text().split()[2]) for task in tasks}

    before = switches()
    for cpu in range(NUM_QUEUES):
        running.guest.output(
            f"fio --name=read --filename=/dev/vda --rw=randread --bs=4k --size=1m --direct=1"
            f" --cpus_allowed={cpu}"
        )
    busy = [task for task, count in switches().items() if count - before.get(task, 0) >= 100]
    assert len(busy) >= IOTHREADS


def test_file_system_is_sound_after_mounting(running: Running) -> None:
    guest = running.guest
    guest.output("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt")
    guest.output("cp -r /usr /mnt/copy && umount /mnt && mount -o ro /dev/vda /mnt")
    sums = "find . -type f | sort | xargs md5sum"
    assert guest.output(f"cd /mnt/copy; {sums}") == guest.output(f"cd /usr; {sums}")
    guest.output("umount /mnt && e2fsck -fn /dev/vda")
    assert running.image.read_bytes()[1080:1082] == b"\x53\xef"  # ext4's magic number


def test_discard_frees_host_blocks(running: Running) -> None:
    guest = running.guest
    guest.output("dd if=/dev/urandom of=/dev/vda bs=1M count=32 conv=fsync")
    full = running.allocated()
    guest.output(f"/usr/bin/blkdiscard -o {16 * MIB} -l {8 * MIB} /dev/vda")
    assert full - running.allocated() >= 7 * MIB
    assert running.image.read_bytes()[16 * MIB : 24 * MIB] == bytes(8 * MIB)
    guest.output("/usr/bin/blkdiscard /dev/vda")
    assert running.allocated() < MIB


def test_write_zeroes_reads_back_as_zeroes(running: Running) -> None:
    guest = running.guest
    guest.output("dd if=/dev/urandom of=/dev/vda bs=1M count=4 conv=fsync")
    guest.output(f"/usr/bin/blkdiscard --zeroout -o {MIB} -l {2 * MIB} /dev/vda")
    content = running.image.read_bytes()[: 4 * MIB]
    assert content[MIB : 3 * MIB] == bytes(2 * MIB)
    assert content[:MIB] != bytes(MIB)
    assert content[3 * MIB :] != bytes(MIB)


def test_cache_mode_is_toggled_in_the_guest(running: Running) -> None:
    guest = running.guest
    mode = "/sys/block/vda/cache_type"
    assert guest.output(f"cat {mode}") == "write back"
    try:
        guest.output(f"echo 'write through' >{mode}")
        assert guest.output(f"cat {mode}") == "write through"
        assert guest.output("cat /sys/block/vda/queue/write_cache") == "write through"
        # It was the device that changed: a driver that looks again sees it.
        guest.output("dd if=/dev/urandom of=/dev/vda bs=4k count=8 oflag=direct")
        driver = "/sys/bus/virtio/drivers/virtio_blk"
        guest.output(
            f"name=$(basename $(readlink /sys/block/vda/device)); echo $name >{driver}/unbind;"
            f" echo $name >{driver}/bind"
        )
        assert guest.wait_for(f"cat {mode}") == "write through"
    finally:
        guest.output(f"echo 'write back' >{mode}")
    assert guest.output(f"cat {mode}") == "write back"


def test_resize_reaches_the_guest_during_io(running: Running) -> None:
    guest = running.guest
    size = running.image.stat().st_size + 16 * MIB
    job = guest.start_command(
        "fio --name=io --filename=/dev/vda --rw=randrw --bs=4k --size=8m --direct=1"
        " --ioengine=libaio --iodepth=8 --time_based --runtime=2"
    )
    os.truncate(running.image, size)
    running.vringd.look_at_sizes()
    guest.wait_for(f"test $(cat /sys/block/vda/size) = {size // 512}")
    result = job.wait(60)
    assert result.status == 0, result.output
    guest.output(f"echo end | dd of=/dev/vda bs=512 seek={size // 512 - 1} conv=sync,fsync")
    assert running.image.read_bytes()[-512:].rstrip(b"\0") == b"end\n"


def test_disk_works_again_after_a_reset_during_io(running: Running) -> None:
    guest = running.guest
    guest.output(f"echo before | dd of=/dev/vda bs=512 seek={64 * MIB // 512} conv=sync,fsync")
    guest.start_command(
        "fio --name=io --filename=/dev/vda --rw=randrw --bs=4k --size=8m --direct=1"
        " --ioengine=libaio --iodepth=32 --numjobs=4 --time_based --runtime=60"
    )
    guest.wait_for("test $(awk '{print $1 + $2}' /sys/block/vda/inflight) -gt 0")
    guest.reset()
    read = f"dd if=/dev/vda bs=512 skip={64 * MIB // 512} count=1 2>/dev/null | head -n 1"
    assert guest.output(read) == "before"
    assert guest.output("cat /sys/block/vda/serial") == SERIAL
    assert "broken" not in running.vringd.output()
