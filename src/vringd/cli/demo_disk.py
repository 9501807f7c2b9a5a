"""The disk of `vringd demo` and the options that serve it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from vringd.control.build import Kind, build, from_argument
from vringd.control.host import check_host
from vringd.control.schema import ServeOptions
from vringd.testing.guest_devices import escaped

NUM_QUEUES: Final = 4
SERIAL: Final = "vringd-demo"

_SIZE: Final = 256 << 20
_GROWTH: Final = 64 << 20


class DemoDisk:
    """A raw image in `folder`, and its export at a socket there."""

    export_id: Final = "e0"

    def __init__(self, folder: Path) -> None:
        self.image = folder / "disk.img"
        self.socket = folder / "disk.sock"
        self.size = _SIZE

    def create(self) -> None:
        """Makes the image, with no block allocated yet."""
        with self.image.open("wb") as file:
            file.truncate(self.size)

    def grow(self) -> None:
        """Makes the image larger; the daemon has to be told."""
        self.size += _GROWTH
        os.truncate(self.image, self.size)

    def allocated(self) -> int:
        """Bytes that the image occupies on the host."""
        return self.image.stat().st_blocks * 512

    def arguments(self) -> list[tuple[Kind, str]]:
        """The definitions, as `vringd serve` takes them; each IOThread has a CPU of its own
        where there are two."""
        cpus = sorted(os.sched_getaffinity(0))
        pins = [f",cpu-affinity={cpu}" for cpu in cpus[:2]] if len(cpus) > 1 else ["", ""]
        image, socket = escaped(str(self.image)), escaped(str(self.socket))
        return [
            *(("object", f"iothread,id=t{i}{pin}") for i, pin in enumerate(pins)),
            ("blockdev", f"driver=file,node-name=disk,filename={image},discard=unmap"),
            (
                "export",
                f"type=vhost-user-blk,id={self.export_id},node-name=disk,writable=on,"
                f"num-queues={NUM_QUEUES},serial={SERIAL},addr.type=unix,addr.path={socket},"
                "iothread-vq-mapping.0.iothread=t0,iothread-vq-mapping.1.iothread=t1",
            ),
        ]

    def options(self) -> ServeOptions:
        """The same, checked. Raises VringdError."""
        options = build(from_argument(kind, text) for kind, text in self.arguments())
        check_host(options)
        return options

    def command_line(self) -> str:
        """The same, for a shell."""
        parts = [f"--{kind} {shlex.quote(text)}" for kind, text in self.arguments()]
        return " \\\n".join(["  vringd serve", *(f"    {part}" for part in parts)])
