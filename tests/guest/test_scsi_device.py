"""SCSI disks with four command queues on two IOThreads in a Linux guest, and sg3-utils on them.

The tests share one guest and one device. Targets: 0 a thin disk in a file, 1 a CD-ROM. What a
test adds it takes away again; content of the disk is nobody's.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from vringd.block.file import FileBackend
from vringd.control.schema import ScsiDeviceOptions
from vringd.control.scsi_export import ScsiExport
from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserScsi
from vringd.testing.guest_image import (
    SCSI_MODULES,
    SCSI_PROGRAMS,
    guest_image,
    image_missing_reason,
)

from ..scsi_rig import ScsiHost

MIB = 1 << 20
NUM_QUEUES = 4
DISK_SIZE = 128 * MIB
DISK = ScsiDeviceOptions(
    node_name="disk",
    target=0,
    writable=True,
    serial="SER-1",
    vendor="ACME",
    product="ROCKET DISK",
    ver="1.5",
    wwn=0x5000C500A1B2C3D4,
    rotation_rate=1,
)
CDROM = ScsiDeviceOptions(node_name="iso", target=1, cdrom=True)

MISSING = image_missing_reason(SCSI_PROGRAMS)
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@dataclass(frozen=True)
class Running:
    """A guest on a vringd SCSI device."""

    guest: Guest
    host: ScsiHost
    export: ScsiExport
    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "disk.img"

    def interrupts(self, queue: int) -> int:
        line = self.guest.output(
            f"grep -E 'virtio[0-9]+-request$' /proc/interrupts | sed -n {queue + 1}p"
        )
        return sum(int(word) for word in line.split()[1 : 1 + NUM_QUEUES])

    def quiesce(self) -> None:
        """Have the disk tell its unit attentions to somebody who does not mind."""
        self.guest.wait_for("sg_readcap /dev/sda")

    @contextmanager
    def another(self, size: int, target: int, lun: int = 0) -> Iterator[Path]:
        """One more disk, plugged in."""
        image = self.folder / f"more-{target}-{lun}.img"
        image.touch()
        os.truncate(image, size)
        name = f"more{target}-{lun}"
        self.host.disks[name] = FileBackend(name, str(image))
        options = ScsiDeviceOptions(node_name=name, target=target, lun=lun, writable=True)
        self.host.run(self.export.add_device(options))
        try:
            yield image
        finally:
            if self.export.unit_at(target, lun) is not None:
                self.host.run(self.export.remove_device(target, lun))


@pytest.fixture(scope="module", params=["split", "packed"])
def running(request: pytest.FixtureRequest, module_folder: Path) -> Iterator[Running]:
    folder = module_folder / request.param
    folder.mkdir()
    (folder / "disk.img").touch()
    os.truncate(folder / "disk.img", DISK_SIZE)
    (folder / "disk.iso").write_bytes(b"compact" * 293 * 64)
    os.truncate(folder / "disk.iso", 2 * MIB)
    disks = [
        FileBackend("disk", str(folder / "disk.img"), discard="unmap"),
        FileBackend("iso", str(folder / "disk.iso"), read_only=True),
    ]
    with ExitStack() as stack:
        host = stack.enter_context(ScsiHost(folder, disks))
        export = host.serve([DISK, CDROM], num_queues=NUM_QUEUES)
        device = VhostUserScsi(
            *("scsi", folder / "s0.sock"),
            num_queues=NUM_QUEUES,
            packed=request.param == "packed",
        )
        image = guest_image(programs=SCSI_PROGRAMS, modules=SCSI_MODULES)
        guest = stack.enter_context(Guest([device], cpus=NUM_QUEUES, image=image))
        guest.wait_for("test -b /dev/sda && test -b /dev/sr0")
        yield Running(guest, host, export, folder)


# ---- what Linux sees


def test_linux_finds_disk_and_drive_as_configured(running: Running) -> None:
    guest = running.guest
    block = "/sys/block/sda"
    assert guest.output(f"cat {block}/device/vendor") == "ACME"
    assert guest.output(f"cat {block}/device/model") == "ROCKET DISK"
    assert guest.output(f"cat {block}/device/rev") == "1.5"
    assert guest.output(f"cat {block}/device/wwid") == "naa.5000c500a1b2c3d4"
    assert int(guest.output(f"cat {block}/size")) * 512 == DISK_SIZE
    assert guest.output(f"cat {block}/queue/rotational") == "0"
    assert guest.output(f"cat {block}/queue/fua") == "1"
    assert guest.output(f"cat {block}/queue/write_cache") == "write back"
    assert int(guest.output(f"cat {block}/queue/discard_max_bytes")) > 0
    assert guest.output(f"ls {block}/mq").split() == ["0", "1", "2", "3"]
    assert "Direct-Access" not in guest.output("dmesg | grep -i 'sda.*error' || true")


def test_the_cdrom_is_read(running: Running) -> None:
    running.guest.output("dd if=/dev/sr0 of=/tmp/iso bs=2048 2>/dev/null")
    size, _, digest = running.guest.output("stat -c %s /tmp/iso; md5sum /tmp/iso").partition("\n")
    assert int(size) == 2 * MIB
    import hashlib

    assert digest.split()[0] == hashlib.md5((running.folder / "disk.iso").read_bytes()).hexdigest()
    assert running.guest.output("cat /sys/block/sr0/device/type") == "5"
    running.guest.output("rm /tmp/iso")


def test_file_system_is_sound_after_mounting(running: Running) -> None:
    guest = running.guest
    guest.output("mkfs.ext4 -q /dev/sda && mount /dev/sda /mnt")
    guest.output("cp -r /usr/bin /mnt/copy && umount /mnt && mount -o ro /dev/sda /mnt")
    sums = "find . -type f | sort | xargs md5sum"
    assert guest.output(f"cd /mnt/copy; {sums}") == guest.output(f"cd /usr/bin; {sums}")
    guest.output("umount /mnt && e2fsck -fn /dev/sda")


def test_discard_frees_host_blocks(running: Running) -> None:
    guest = running.guest
    guest.output("dd if=/dev/urandom of=/dev/sda bs=1M count=32 conv=fsync")
    full = running.image.stat().st_blocks
    guest.output(f"/usr/bin/blkdiscard -o {16 * MIB} -l {8 * MIB} /dev/sda")
    assert (full - running.image.stat().st_blocks) * 512 >= 7 * MIB
    assert running.image.read_bytes()[16 * MIB : 24 * MIB] == bytes(8 * MIB)


# ---- queues and IOThreads


VERIFY = (
    "fio --name=verify --filename=/dev/sda --rw=randwrite --bsrange=512-64k --size=6m --direct=1"
    " --ioengine=libaio --iodepth=16 --numjobs=4 --offset_increment=8m --cpus_allowed=0-3"
    " --cpus_allowed_policy=split --verify=crc32c --verify_backlog=256 --group_reporting"
)


def test_fio_verifies_while_queues_move_every_50_ms(running: Running) -> None:
    end = threading.Event()
    moves = 0

    def shuffle() -> None:
        nonlocal moves
        while not end.wait(0.05):
            index = moves % NUM_QUEUES
            thread = running.host.threads[moves // NUM_QUEUES % 2]
            running.host.run(running.export.move_queue(index, thread))
            moves += 1

    mover = threading.Thread(target=shuffle)
    mover.start()
    try:
        result = running.guest.run(f"{VERIFY} --time_based --runtime=6", timeout=120)
    finally:
        end.set()
        mover.join()
    assert result.status == 0, result.output
    assert moves > 40
    used = [stats.snapshot()["batches"] for stats in running.export.stats[2:]]
    assert min(used) > 0


def test_every_command_queue_has_an_interrupt(running: Running) -> None:
    before = [running.interrupts(queue) for queue in range(NUM_QUEUES)]
    running.guest.output(VERIFY, timeout=120)
    after = [running.interrupts(queue) for queue in range(NUM_QUEUES)]
    assert all(new > old for old, new in zip(before, after, strict=True)), (before, after)


# ---- units come, go and grow


def test_disks_come_and_go_while_linux_runs(running: Running) -> None:
    guest = running.guest
    with running.another(8 * MIB, 5, 3) as image:
        guest.wait_for("test -b /dev/sdb")
        assert guest.output("cat /sys/block/sdb/size") == str(8 * MIB // 512)
        guest.output("echo hello | dd of=/dev/sdb conv=sync,fsync 2>/dev/null")
        assert image.read_bytes()[:6] == b"hello\n"
        address = guest.output("basename $(readlink -f /sys/block/sdb/device)")
        assert address.endswith(":5:3")
    guest.wait_for("test ! -e /sys/block/sdb")


def test_a_disk_that_is_pulled_under_load_leaves_the_others_alone(running: Running) -> None:
    guest = running.guest
    with running.another(8 * MIB, 6):
        guest.wait_for("test -b /dev/sdb")
        pulled = guest.start_command(
            "fio --name=io --filename=/dev/sdb --rw=randrw --bs=4k --size=4m --direct=1"
            " --ioengine=libaio --iodepth=16 --time_based --runtime=30"
        )
        other = guest.start_command(f"{VERIFY} --time_based --runtime=3")
        guest.wait_for("test $(awk '{print $1}' /sys/block/sdb/stat) -gt 100")
    guest.wait_for("test ! -e /sys/block/sdb", 60)
    assert pulled.wait(90).status != 0
    result = other.wait(120)
    assert result.status == 0, result.output


def test_resize_is_seen(running: Running) -> None:
    guest = running.guest
    size = running.image.stat().st_size + 16 * MIB
    os.truncate(running.image, size)

    async def refresh() -> bool:
        return running.export.refresh_size()

    assert running.host.run(refresh())
    guest.wait_for(f"test $(cat /sys/block/sda/size) = {size // 512}")
    guest.output(f"echo end | dd of=/dev/sda bs=512 seek={size // 512 - 1} conv=sync,fsync")
    assert running.image.read_bytes()[-512:].rstrip(b"\0") == b"end\n"


# ---- sg3-utils


def test_sg_inq_and_vpd_pages(running: Running) -> None:
    guest = running.guest
    standard = guest.output("sg_inq /dev/sda")
    assert "Vendor identification: ACME" in standard
    assert "serial number: SER-1" in guest.output("sg_vpd --page=0x80 /dev/sda")
    assert "0x5000c500a1b2c3d4" in guest.output("sg_vpd --page=di /dev/sda")
    assert "LBPU=1" in guest.output("sg_vpd --page=lbpv /dev/sda")
    assert re.search(r"solid state|non-rotating", guest.output("sg_vpd --page=bdc /dev/sda"))
    for page in ("sv", "ei", "bl"):
        guest.output(f"sg_vpd --page={page} /dev/sda")


def test_sg_luns_lists_the_units_of_a_target(running: Running) -> None:
    with running.another(MIB, 0, 300):
        listing = running.guest.output("sg_luns --decode /dev/sda")
        assert re.search(r"Lun list length = 16", listing)
        assert "flat space addressing: lun=300" in listing.lower()
    running.guest.wait_for("test $(ls -d /sys/block/sd* | wc -l) = 1")


def test_sg_opcodes(running: Running) -> None:
    running.quiesce()
    listing = running.guest.output("sg_opcodes /dev/sda")
    for command in ("Compare and write", "Unmap", "Write same(16)", "Persistent reserve out"):
        assert command.lower() in listing.lower()
    functions = running.guest.output("sg_opcodes --tmf /dev/sda")
    assert "Logical unit reset" in functions


def test_sg_reset(running: Running) -> None:
    guest = running.guest
    job = guest.start_command(f"{VERIFY} --time_based --runtime=3")
    guest.wait_for("test $(awk '{print $1 + $2}' /sys/block/sda/inflight) -gt 0")
    guest.output("sg_reset --device --no-escalate /dev/sda", timeout=60)
    result = job.wait(120)
    assert result.status == 0, result.output


def test_sg_persist(running: Running) -> None:
    guest = running.guest
    guest.output("sg_persist --out --register --param-sark=0xabc /dev/sda")
    guest.output("sg_persist --out --reserve --param-rk=0xabc --prout-type=5 /dev/sda")
    assert "Key=0xabc" in guest.output("sg_persist --in --read-reservation /dev/sda")
    assert "0xabc" in guest.output("sg_persist --in --read-keys /dev/sda")
    guest.output("sg_persist --out --release --param-rk=0xabc --prout-type=5 /dev/sda")
    guest.output("sg_persist --out --register --param-rk=0xabc --param-sark=0 /dev/sda")
    assert "there are NO registered" in guest.output("sg_persist --in --read-keys /dev/sda")


def test_sg_unmap_write_same_and_lba_status(running: Running) -> None:
    guest = running.guest
    guest.output("dd if=/dev/urandom of=/dev/sda bs=1M count=1 oflag=direct 2>/dev/null")
    guest.output("sg_unmap --lba=0 --num=1024 --force /dev/sda")
    assert "deallocated" in guest.output("sg_get_lba_status --lba=0 /dev/sda")
    assert running.image.read_bytes()[: 512 * 1024] == bytes(512 * 1024)
    guest.output("tr '\\0' 'x' </dev/zero | head -c 512 >/tmp/x")
    guest.output("sg_write_same --16 --in=/tmp/x --lba=8 --num=4 --xferlen=512 /dev/sda")
    guest.output("sync; echo 3 >/proc/sys/vm/drop_caches")
    assert running.image.read_bytes()[4096:6144] == b"x" * 2048
    assert "mapped" in guest.output("sg_get_lba_status --lba=8 /dev/sda")


def test_sg_compare_and_write(running: Running) -> None:
    guest = running.guest
    guest.output("dd if=/dev/zero of=/dev/sda bs=512 count=1 oflag=direct 2>/dev/null")
    guest.output("(head -c 512 /dev/zero; tr '\\0' 'n' </dev/zero | head -c 512) >/tmp/caw")
    command = "sg_compare_and_write --in=/tmp/caw --lba=0 --num=1 --xferlen=1024 /dev/sda"
    guest.output(command)
    assert running.image.read_bytes()[:512] == b"n" * 512
    result = guest.run(command)
    assert result.status == 14, result.output  # MISCOMPARE


def test_sg_modes_switches_the_write_cache(running: Running) -> None:
    guest = running.guest
    cache = "/sys/block/sda/device/scsi_disk/*/cache_type"
    guest.output(f"echo 'write through' >$(echo {cache})")
    assert guest.output(f"cat {cache}") == "write through"
    guest.output(f"echo 'write back' >$(echo {cache})")
    assert guest.output(f"cat {cache}") == "write back"
