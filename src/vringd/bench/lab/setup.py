"""What a server is asked to serve, and where it and its load may run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from vringd.bench.lab.errors import UsageError
from vringd.control import keyval, values
from vringd.control.errors import OptionError

NULL_DISK: Final = "driver=null-co,size=1G,read-zeroes=off"

_SUN_PATH: Final = 107
_NULL_DRIVERS: Final = ("null-co", "null-aio")
_OWN_OPTIONS: Final = ("cpu-ns", "parallelism")

Kind = Literal["blk", "scsi"]
Cpus = tuple[int, ...]
"""CPUs that something may run on; none: any."""


@dataclass(frozen=True)
class Disk:
    """A disk, as `--blockdev` describes it, without its node-name."""

    text: str = NULL_DISK
    options: dict[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        try:
            options = keyval.parse(self.text, implied_key="driver")
        except OptionError as error:
            raise UsageError(f"--disk {self.text}: {error}") from None
        if "driver" not in options or "node-name" in options:
            raise UsageError(
                f"--disk {self.text}: give driver=… and its options, without a node-name"
            )
        object.__setattr__(self, "options", options)

    @property
    def driver(self) -> str:
        return str(self.options["driver"])

    @property
    def is_null(self) -> bool:
        return self.driver in _NULL_DRIVERS

    @property
    def filename(self) -> str | None:
        found = self.options.get("filename")
        return None if found is None else str(found)

    @property
    def direct(self) -> bool:
        """Whether the file is opened with O_DIRECT."""
        cache = self.options.get("cache")
        return isinstance(cache, dict) and cache.get("direct") in ("on", True)

    @property
    def size(self) -> int:
        """Bytes of a null disk. Raises UsageError for a value that is no size."""
        try:
            return values.size(1)(self.options.get("size", "1G"))
        except ValueError as error:
            raise UsageError(f"--disk {self.text}: size: {error}") from None

    @property
    def own_options(self) -> list[str]:
        """The options of the disk that only vringd has."""
        return [name for name in _OWN_OPTIONS if name in self.options]


@dataclass(frozen=True)
class Setup:
    """One device of one server: its disk, virtqueues and IOThreads, and their CPUs.

    queues: of a virtio-scsi device ("scsi"), which has the disk as target 0 LUN 0, its command
    queues. thread_cpus: one entry for each IOThread; without entries IOThreads may run wherever
    the server may. Queue q belongs to IOThread q % threads.
    """

    disk: Disk
    queues: int = 1
    threads: int = 1
    server_cpus: Cpus = ()
    thread_cpus: tuple[Cpus, ...] = ()
    kind: Kind = "blk"


@dataclass(frozen=True)
class Place:
    """Where server and client meet: a folder for sockets and logs; nice: the priority of both."""

    folder: Path
    nice: int = 0

    def __post_init__(self) -> None:
        if len(str(self.socket)) > _SUN_PATH:
            raise UsageError(f"{self.folder}: too long for the path of a Unix socket")

    @property
    def socket(self) -> Path:
        return self.folder / "device.sock"

    @property
    def rpc(self) -> Path:
        return self.folder / "rpc.sock"


def cpu_list(cpus: Cpus) -> str:
    return ",".join(map(str, cpus))
