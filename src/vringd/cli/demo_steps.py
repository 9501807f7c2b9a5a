"""What the guest of `vringd demo` does with its disk."""

from __future__ import annotations

import re

from vringd.cli.demo_disk import NUM_QUEUES, SERIAL, DemoDisk
from vringd.cli.demo_report import Progress
from vringd.control.errors import VringdError
from vringd.testing.guest import Guest

_FIO = (
    "fio --name=verify --filename=/dev/vda --rw=randwrite --bs=4k --size=8m"
    f" --numjobs={NUM_QUEUES} --offset_increment=16m --cpus_allowed=0-{NUM_QUEUES - 1}"
    " --cpus_allowed_policy=split --ioengine=libaio --direct=1 --iodepth=16"
    " --verify=crc32c --do_verify=1 --group_reporting"
)


class DemoFailedError(VringdError):
    """The demonstration could not be given, or showed a fault."""


class GuestSteps:
    """The steps, in their order; all of them run in one and the same thread.

    Each raises `GuestError` when a command in the guest fails, `DemoFailedError` when what it
    shows is wrong.
    """

    def __init__(self, guest: Guest, disk: DemoDisk, progress: Progress) -> None:
        self._guest = guest
        self._disk = disk
        self._progress = progress
        self._console_shown = 0

    def boot(self) -> None:
        with self._progress.step("a Linux guest boots under QEMU") as step:
            self._guest.start()
            self._show_console()
            queues = len(self._run("ls /sys/block/vda/mq").split())
            serial = self._run("cat /sys/block/vda/serial")
            _expect(queues == NUM_QUEUES, f"the guest uses {queues} queues, not {NUM_QUEUES}")
            _expect(serial == SERIAL, f"the disk's serial number is {serial!r}, not {SERIAL!r}")
            step.result = f"/dev/vda: {queues} queues, serial {serial}"

    def verify(self) -> None:
        with self._progress.step("fio writes at random and verifies") as step:
            printed = self._run(_FIO, timeout=300)
            read = _fio_figure(printed, "read")
            written = _fio_figure(printed, "write")
            step.result = f"{NUM_QUEUES} jobs on {NUM_QUEUES} vCPUs, IOPS: {written} w, {read} r"

    def make_file_system(self) -> None:
        with self._progress.step("mkfs.ext4, mount, copy, umount, fsck") as step:
            self._run("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt", timeout=120)
            self._run("cp -r /usr /mnt/copy")
            self._run("umount /mnt && mount -o ro /dev/vda /mnt")  # from the disk, not a cache
            sums = "find . -type f | sort | xargs md5sum | md5sum"
            original = self._run(f"cd /usr; {sums}")
            _expect(self._run(f"cd /mnt/copy; {sums}") == original, "a copied file is not the same")
            count = self._run("find /mnt/copy -type f | wc -l")
            self._run("umount /mnt && e2fsck -f -n /dev/vda", timeout=120)
            step.result = f"{count} files read back the same"

    def discard(self) -> None:
        with self._progress.step("blkdiscard frees space on the host") as step:
            before = self._disk.allocated()
            self._run("/usr/bin/blkdiscard -f /dev/vda")
            after = self._disk.allocated()
            _expect(after < before // 4, f"the image occupies {after} bytes, before {before}")
            step.result = f"{before / 2**20:.0f} MiB -> {after / 2**20:.0f} MiB"

    def new_size(self) -> str:
        """Waits until the guest knows the disk's new size; part of a step, whose result it
        returns."""
        sectors = self._disk.size // 512
        self._guest.wait_for(f"test $(cat /sys/block/vda/size) = {sectors}", timeout=20)
        return f"the guest sees {self._disk.size >> 20} MiB"

    def power_off(self) -> None:
        with self._progress.step("the guest powers off"):
            self._show_console()
            self._guest.power_off()

    def _run(self, command: str, timeout: float = 60.0) -> str:
        self._progress.detail(f"# {command}")
        printed = self._guest.output(command, timeout)
        self._progress.detail(printed)
        return printed

    def _show_console(self) -> None:
        console = self._guest.console()
        self._progress.detail(console[self._console_shown :])
        self._console_shown = len(console)


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise DemoFailedError(otherwise)


def _fio_figure(printed: str, direction: str) -> str:
    found = re.search(rf"^ *{direction}: IOPS=([^,]+),", printed, re.MULTILINE)
    return found[1] if found else "?"
