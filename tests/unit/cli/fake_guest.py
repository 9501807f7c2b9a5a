"""A guest for `vringd demo` that is no virtual machine, on the disk that is really served."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from vringd.bench.options import make_job
from vringd.bench.runner import run_jobs
from vringd.bench.target import Target
from vringd.cli.demo_disk import SERIAL
from vringd.testing.frontend import Frontend
from vringd.testing.guest import GuestDiedError, GuestError
from vringd.testing.guest_devices import VhostUserBlk

Answer = Callable[[], str]

WRITES = {"rw": "randwrite", "bs": "4k", "iodepth": "16", "size": "1m"}
WRITES_ON_EACH_QUEUE = {**WRITES, "numjobs": "4", "offset_increment": "1m"}
DISCARDS = {"rw": "trim", "bs": "1m", "size": "4m"}


def returning(text: str) -> Answer:
    return lambda: text


def raising(error: Exception) -> Answer:
    def answer() -> str:
        raise error

    return answer


@dataclass
class FakeGuest:
    """Answers commands by how they begin; fio and blkdiscard do to the disk what they would.

    `others` comes before the right answers; "start" in it is for booting.
    """

    others: Mapping[str, Answer] = field(default_factory=dict)
    closed: bool = False

    def __call__(self, devices: Sequence[VhostUserBlk], *, cpus: int) -> FakeGuest:
        """The guest of the one run there is."""
        (self._disk,) = devices
        assert cpus == self._disk.num_queues
        return self

    def start(self) -> None:
        # As QEMU does, it ends when it is killed.
        self._process = subprocess.Popen(["sleep", "600"])
        if "start" in self.others:
            self.others["start"]()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_end(self) -> str:
        """Waits until it is killed."""
        status = self._process.wait(30)
        raise GuestDiedError(f"QEMU ended with status {status}")

    def output(self, command: str, timeout: float = 60.0) -> str:
        right = {
            "ls /sys/block/vda/mq": returning("0  1  2  3"),
            "cat /sys/block/vda/serial": returning(SERIAL),
            "fio ": partial(self.run, WRITES_ON_EACH_QUEUE),
            "find /mnt/copy": returning("17"),
            "/usr/bin/blkdiscard": partial(self.run, DISCARDS),
        }
        for beginning, answer in (*self.others.items(), *right.items()):
            if command.startswith(beginning):
                return answer()
        return ""

    def run(self, options: dict[str, str]) -> str:
        """Does to the disk what the job with these options does; returns what fio prints."""
        job, _ = make_job("fake", options)
        run_jobs(Target(self._disk.socket, num_queues=self._disk.num_queues), [job])
        return "   read: IOPS=12.3k, BW=1\n  write: IOPS=456, BW=2"

    def wait_for(self, command: str, timeout: float) -> str:
        with Frontend.connect(self._disk.socket) as frontend:
            frontend.negotiate()
            sectors = int.from_bytes(frontend.get_config(0, 8), "little")
        if command != f"test $(cat /sys/block/vda/size) = {sectors}":
            raise GuestError(f"{command}: there are {sectors}")
        return ""

    def console(self) -> str:
        return "Linux says hello\n"

    def power_off(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.closed = True
