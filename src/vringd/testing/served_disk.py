"""`vringd serve` in a process of its own, for tests that kill, restart or signal it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from vringd.testing.peer_process import BackgroundProcess

_PROGRAM = "from vringd.cli.main import main; raise SystemExit(main())"


def vringd_command(*arguments: str) -> list[str]:
    """The argument list that runs this Python's vringd; it dies with the thread that starts it."""
    return ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", _PROGRAM, *arguments]


def run_vringd(*arguments: str, timeout: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Runs vringd to its end, within `timeout` s (`subprocess.TimeoutExpired`)."""
    return subprocess.run(
        vringd_command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class ServedDisk:
    """The options that serve the raw file `image` as one vhost-user-blk device.

    `node` and `export` hold more options of the block node and of the export, with QEMU's
    names (``{"cache.direct": "on"}``); `iothreads` is None if they map the queues. The socket is
    ``NAME.sock`` in `folder`, whose path must be short. Give it, alone or with others, to
    :class:`Vringd`.
    """

    def __init__(
        self,
        folder: Path,
        image: Path,
        *,
        name: str = "disk",
        num_queues: int = 1,
        iothreads: int | None = 1,
        writable: bool = True,
        node: Mapping[str, str] | None = None,
        export: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.image = image
        self.socket = folder / f"{name}.sock"
        node_options = {
            "driver": "file",
            "node-name": name,
            "filename": str(image),
            "discard": "unmap",
            **(node or {}),
        }
        export_options = {
            "type": "vhost-user-blk",
            "id": name,
            "node-name": name,
            "writable": "on" if writable else "off",
            "num-queues": str(num_queues),
            "addr.type": "unix",
            "addr.path": str(self.socket),
            **({} if iothreads is None else {"iothreads": str(iothreads)}),
            **(export or {}),
        }
        self.arguments = (
            *("--blockdev", _keyval(node_options)),
            *("--export", _keyval(export_options)),
        )


class ServedScsi:
    """The options that serve raw files as disks of one vhost-user-scsi device: LUN 0 of targets 0,
    1, 2, ... As `ServedDisk`; `devices` holds more options of each device."""

    def __init__(
        self,
        folder: Path,
        images: Sequence[Path],
        *,
        name: str = "scsi",
        num_queues: int = 1,
        iothreads: int | None = 1,
        devices: Sequence[Mapping[str, str]] = (),
        node: Mapping[str, str] | None = None,
        export: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.socket = folder / f"{name}.sock"
        words: list[str] = []
        export_options = {
            "type": "vhost-user-scsi",
            "id": name,
            "num-queues": str(num_queues),
            "addr.type": "unix",
            "addr.path": str(self.socket),
            **({} if iothreads is None else {"iothreads": str(iothreads)}),
            **(export or {}),
        }
        for number, image in enumerate(images):
            known = {"driver": "file", "node-name": f"{name}{number}", "filename": str(image)}
            words += ["--blockdev", _keyval({**known, "discard": "unmap", **(node or {})})]
            more = devices[number] if number < len(devices) else {}
            device = {"node-name": f"{name}{number}", "writable": "on", **more}
            for key, value in device.items():
                export_options[f"devices.{number}.{key}"] = value
        self.arguments = (*words, "--export", _keyval(export_options))


class Vringd:
    """A running `vringd serve` with one or more disks; a context manager.

    `folder` gets its logs, one for each start. Start it from a thread that outlives it.
    """

    def __init__(
        self,
        folder: Path,
        disks: Sequence[ServedDisk | ServedScsi],
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._disks = tuple(disks)
        self._arguments = [*arguments, *(word for disk in disks for word in disk.arguments)]
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Starts it (again) and waits until it serves; `PeerFailedError` when it does not."""
        self._starts += 1
        self.process = BackgroundProcess(
            "vringd",
            vringd_command("serve", *self._arguments),
            log=self._folder / f"vringd-{self._starts}.log",
        )
        try:
            for disk in self._disks:
                self.process.wait_for_socket(disk.socket)
        except BaseException:
            self.process.stop()
            raise

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would."""
        self.process.kill()

    def stop(self) -> int:
        """Ends it with SIGTERM and returns its status."""
        return self.process.stop()

    def look_at_sizes(self) -> None:
        """Has it look at the sizes of its images again."""
        self.process.send_signal(signal.SIGHUP)

    def output(self) -> str:
        """What it has logged since its last start."""
        return self.process.output()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _keyval(options: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value.replace(',', ',,')}" for key, value in options.items())
