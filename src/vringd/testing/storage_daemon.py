"""QEMU's own vhost-user-blk server, as a reference for the tests to compare with."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from vringd.testing.peer_process import PeerProcess
from vringd.testing.qmp_client import QmpClient

NODE = "disk"
EXPORT = "export"


class StorageDaemon:
    """A qemu-storage-daemon that serves one disk; a context manager.

    The disk is the raw file `image`, or an empty disk of `size` bytes that forgets what is
    written (and reads as zeroes). `folder` gets the vhost-user socket (`socket`), the QMP
    socket and the log; its path must be short (a socket's path has at most 107 bytes).
    """

    def __init__(
        self,
        folder: Path,
        *,
        image: Path | None = None,
        size: int = 64 << 20,
        num_queues: int = 1,
        writable: bool = True,
        logical_block_size: int = 512,
        locking: bool = True,
    ) -> None:
        self.socket = folder / "qsd.sock"
        self._qmp_path = folder / "qsd.qmp"
        if image is None:
            blockdev = f"driver=null-co,node-name={NODE},size={size},read-zeroes=on"
        else:
            blockdev = (
                f"driver=file,node-name={NODE},filename={image},discard=unmap,"
                f"read-only={_on(not writable)},locking={_on(locking)}"
            )
        self.process = PeerProcess(
            "qemu-storage-daemon",
            *("--blockdev", blockdev),
            *("--export", f"type=vhost-user-blk,id={EXPORT},node-name={NODE},"
              f"writable={_on(writable)},num-queues={num_queues},"
              f"logical-block-size={logical_block_size},"
              f"addr.type=unix,addr.path={self.socket}"),
            *("--chardev", f"socket,id=qmp,path={self._qmp_path},server=on,wait=off"),
            *("--monitor", "chardev=qmp"),
            share=[folder] if image is None else [folder, image.parent],
            log=folder / "qsd.log",
        )  # fmt: skip
        try:
            self.process.wait_for_socket(self.socket)
            self.process.wait_for_socket(self._qmp_path)
            self.qmp = QmpClient(self._qmp_path)
        except BaseException:
            self.process.stop()
            raise

    def resize(self, size: int) -> None:
        """Changes the disk's size in bytes; the guest is told."""
        self.qmp.command("block_resize", node_name=NODE, size=size)

    def close(self) -> None:
        """Ends the server."""
        self.qmp.close()
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _on(value: bool) -> str:
    return "on" if value else "off"
