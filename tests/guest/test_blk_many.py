"""Several devices of one daemon in one guest: two disks, a read-only one, and hot-plug."""

from __future__ import annotations

import hashlib
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
DISK_SIZE = 32 * MIB


@dataclass(frozen=True)
class Running:
    """A guest with the disks `first` (vda) and `fixed` (vdb, read-only); `extra` is for plugging.

    All belong to one daemon, and all queues to the IOThreads t0 and t1.
    """

    guest: Guest
    vringd: Vringd
    disks: dict[str, ServedDisk]


@pytest.fixture(scope="module")
def running(module_folder: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        disks = {}
        for name in ("first", "fixed", "extra"):
            image = module_folder / f"{name}.img"
            image.write_bytes(os.urandom(DISK_SIZE))
            disks[name] = ServedDisk(
                *(module_folder, image),
                name=name,
                num_queues=2,
                iothreads=None,
                writable=name != "fixed",
                node={"read-only": "on"} if name == "fixed" else {},
                export={"iothread.0": "t0", "iothread.1": "t1", "serial": name},
            )
        threads = ["--object", "iothread,id=t0", "--object", "iothread,id=t1"]
        vringd = stack.enter_context(Vringd(module_folder, [*disks.values()], arguments=threads))
        devices = [device(disks["first"]), device(disks["fixed"])]
        guest = stack.enter_context(Guest(devices, cpus=2, hotplug_ports=1))
        yield Running(guest, vringd, disks)


def device(disk: ServedDisk) -> VhostUserBlk:
    return VhostUserBlk(disk.name, disk.socket, num_queues=2)


def test_each_disk_has_its_own_content(running: Running) -> None:
    guest = running.guest
    assert guest.output("cat /sys/block/vda/serial; echo; cat /sys/block/vdb/serial").split() == [
        *("first", "fixed")
    ]
    for letter, name in zip("ab", ("first", "fixed"), strict=True):
        copy = guest.output(f"md5sum /dev/vd{letter}").split()[0]
        assert copy == md5(running.disks[name].image)


def test_both_disks_are_used_at_once(running: Running) -> None:
    before = md5(running.disks["fixed"].image)
    running.guest.output(
        "fio --direct=1 --ioengine=libaio --iodepth=8 --bs=4k --size=8m"
        " --name=write --filename=/dev/vda --rw=randwrite --verify=crc32c --do_verify=1"
        " --name=read --filename=/dev/vdb --rw=randread"
    )
    assert md5(running.disks["fixed"].image) == before


def test_read_only_disk_refuses_writes(running: Running) -> None:
    guest = running.guest
    assert guest.output("cat /sys/block/vdb/ro") == "1"
    before = md5(running.disks["fixed"].image)
    result = guest.run("dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync")
    assert result.status != 0
    assert guest.run("/usr/bin/blkdiscard /dev/vdb").status != 0
    assert md5(running.disks["fixed"].image) == before


def test_disks_are_plugged_and_unplugged(running: Running) -> None:
    guest = running.guest
    extra = device(running.disks["extra"])
    image = running.disks["extra"].image
    for text in ("first time", "second time"):
        guest.plug(extra)
        guest.wait_for("test -e /dev/vdc")
        assert guest.output("cat /sys/block/vdc/serial") == "extra"
        assert guest.output("ls /sys/block/vdc/mq").split() == ["0", "1"]
        guest.output(f"echo {text} | dd of=/dev/vdc bs=512 conv=sync,fsync")
        assert image.read_bytes()[:512].rstrip(b"\0").decode() == f"{text}\n"
        guest.unplug(extra)
        guest.wait_for("! test -e /dev/vdc")
    # The others have not noticed.
    guest.output("dd if=/dev/vda of=/dev/null bs=64k count=16")


def test_disk_is_unplugged_during_io(running: Running) -> None:
    guest = running.guest
    extra = device(running.disks["extra"])
    guest.plug(extra)
    guest.wait_for("test -e /dev/vdc")
    job = guest.start_command(
        "fio --name=io --filename=/dev/vdc --rw=randrw --bs=4k --size=8m --direct=1"
        " --ioengine=libaio --iodepth=32 --numjobs=2 --time_based --runtime=30"
    )
    guest.wait_for("test $(awk '{print $1 + $2}' /sys/block/vdc/inflight) -gt 0")
    guest.unplug(extra)
    assert job.wait(30).status != 0
    guest.output("dd if=/dev/vda of=/dev/null bs=64k count=16")
    assert "broken" not in running.vringd.output()


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()
