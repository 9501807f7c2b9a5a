"""Packaged programs as front-ends of a vhost-user-blk server, through libblkio.

Every function connects to the server at `socket`, does one thing and disconnects. libblkio
connects more than once each time (first to look, then to use), so a server must take a
new connection after the old one has gone. QEMU's driver uses one queue and demands
``cache.direct=on``; so does nbdkit 1.42, whose plug-in cannot set ``num-queues`` (it takes
any property's value for a file name) and has one request in flight at a time.

Functions raise `PeerFailedError` when the program fails and `PeerMissingError` when it is
not installed (see :data:`CLIENT_PROGRAMS`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vringd.testing.peer_process import PeerProcess
from vringd.testing.peers import PeerFailedError, run_peer

CLIENT_PROGRAMS: Final = ("qemu-img", "qemu-io", "nbdkit", "nbdinfo", "nbdcopy")

_CONNECTION: Final = "driver=virtio-blk-vhost-user,cache.direct=on"


def image_options(socket: Path, *, read_only: bool = False) -> str:
    """The server's disk as an argument after ``--image-opts``."""
    options = f"{_CONNECTION},path={_escaped(socket)}"
    return f"{options},read-only=on" if read_only else options


def disk_size(socket: Path, timeout: float = 20.0) -> int:
    """The disk's size in bytes, as qemu-img sees it."""
    done = run_peer(
        *("qemu-img", "info", "--output=json", "--image-opts", image_options(socket)),
        share=[socket.parent],
        timeout=timeout,
    )
    information: dict[str, Any] = json.loads(done.stdout)
    return int(information["virtual-size"])


def first_difference(socket: Path, image: Path, timeout: float = 120.0) -> str | None:
    """Compares the disk with the raw file `image`: None, or qemu-img's words on where."""
    done = run_peer(
        *("qemu-img", "compare", "--image-opts"),
        *(image_options(socket, read_only=True), _file_options(image)),
        share=[socket.parent, image.parent],
        timeout=timeout,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise PeerFailedError(f"qemu-img compare: {done.stdout}{done.stderr}")
    return None if done.returncode == 0 else done.stdout.strip()


def write_image(image: Path, socket: Path, timeout: float = 120.0) -> None:
    """Copies the raw file `image` onto the disk, which must be as large."""
    run_peer(
        *("qemu-img", "convert", "-n", "-f", "raw", "--target-image-opts"),
        *(str(image), image_options(socket)),
        share=[socket.parent, image.parent],
        timeout=timeout,
    )


def read_image(socket: Path, image: Path, timeout: float = 120.0) -> None:
    """Copies the disk into the raw file `image`."""
    run_peer(
        *("qemu-img", "convert", "-O", "raw", "--image-opts"),
        *(image_options(socket, read_only=True), str(image)),
        share=[socket.parent, image.parent],
        timeout=timeout,
    )


@dataclass(frozen=True)
class BenchResult:
    """What ``qemu-img bench`` measured."""

    seconds: float
    requests_per_second: float


def bench(
    socket: Path,
    *,
    requests: int,
    depth: int = 32,
    size: int = 4096,
    write: bool = False,
    step: int | None = None,
    pattern: int | None = None,
    flush_interval: int | None = None,
    timeout: float = 120.0,
) -> BenchResult:
    """Sends `requests` of `size` bytes, `depth` at a time, `step` bytes apart (else `size`).

    With `write` they are writes of the byte `pattern`, with a flush after each
    `flush_interval` of them.
    """
    arguments = ["-c", str(requests), "-d", str(depth), "-s", str(size), "-t", "none"]
    if write:
        arguments.append("-w")
    if step is not None:
        arguments += ["-S", str(step)]
    if pattern is not None:
        arguments.append(f"--pattern={pattern}")
    if flush_interval is not None:
        arguments.append(f"--flush-interval={flush_interval}")
    done = run_peer(
        *("qemu-img", "bench", *arguments, "--image-opts", image_options(socket)),
        share=[socket.parent],
        timeout=timeout,
    )
    found = re.search(r"Run completed in ([0-9.]+) seconds", done.stdout)
    if found is None:
        raise PeerFailedError(f"qemu-img bench printed no time:\n{done.stdout}{done.stderr}")
    seconds = float(found[1])
    return BenchResult(seconds, requests / max(seconds, 0.001))


def qemu_io(socket: Path, *commands: str, read_only: bool = False, timeout: float = 60.0) -> str:
    """Runs qemu-io commands (``read -P 0xab 4k 64k``, ``discard 1M 1M``, ...) in order.

    Returns what they printed. Raises `PeerFailedError` when one fails, a pattern that was
    not found included.
    """
    arguments = [word for command in commands for word in ("-c", command)]
    if read_only:
        arguments.append("-r")
    done = run_peer(
        *("qemu-io", *arguments, "--image-opts", image_options(socket, read_only=read_only)),
        share=[socket.parent],
        timeout=timeout,
    )
    printed = done.stdout + done.stderr
    if "verification failed" in printed or "failed:" in printed:
        raise PeerFailedError(f"qemu-io {'; '.join(commands)}:\n{printed}")
    return printed


class NbdBridge:
    """nbdkit serving the disk again, as NBD on a Unix socket; a context manager.

    nbdkit connects to the disk anew for each of its own clients. `folder` gets the NBD
    socket and the log.
    """

    def __init__(self, socket: Path, folder: Path) -> None:
        self.nbd_socket = folder / "nbd.sock"
        self.uri = f"nbd+unix:///?socket={self.nbd_socket}"
        self._share = [folder, socket.parent]
        self.process = PeerProcess(
            *("nbdkit", "-f", "-U", str(self.nbd_socket)),
            *("blkio", "virtio-blk-vhost-user", f"path={socket}"),
            share=self._share,
            log=folder / "nbdkit.log",
        )
        try:
            self.process.wait_for_socket(self.nbd_socket)
        except BaseException:
            self.process.stop()
            raise

    def information(self) -> dict[str, Any]:
        """``nbdinfo --json`` of the one export: ``export-size``, ``can_flush``, ..."""
        done = run_peer("nbdinfo", "--json", "--no-content", self.uri, share=self._share)
        information: dict[str, Any] = json.loads(done.stdout)["exports"][0]
        return information

    def copy_to(self, image: Path, timeout: float = 120.0) -> None:
        """Copies the disk into the raw file `image` with nbdcopy."""
        share = [*self._share, image.parent]
        run_peer("nbdcopy", self.uri, str(image), share=share, timeout=timeout)

    def copy_from(self, image: Path, timeout: float = 120.0) -> None:
        """Copies the raw file `image` onto the disk with nbdcopy, and flushes."""
        share = [*self._share, image.parent]
        run_peer("nbdcopy", "--flush", str(image), self.uri, share=share, timeout=timeout)

    def close(self) -> None:
        """Ends nbdkit."""
        self.process.stop()

    def __enter__(self) -> NbdBridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file_options(image: Path) -> str:
    return f"driver=raw,file.driver=file,file.filename={_escaped(image)}"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")
