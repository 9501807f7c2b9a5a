"""The image that servers in these tests have, and what qemu-img must find in it."""

from __future__ import annotations

from pathlib import Path

from vringd.testing import blk_clients

MIB = 1 << 20
DISK_SIZE = 8 * MIB


def check_with_qemu_img(socket: Path, image: Path) -> None:
    """Copies the disk out, finds the one byte that differs from it in a copy, and copies in."""
    assert blk_clients.disk_size(socket) == image.stat().st_size
    copy = image.with_name("copy.img")
    blk_clients.read_image(socket, copy)
    assert copy.read_bytes() == image.read_bytes()
    assert blk_clients.first_difference(socket, copy) is None

    content = bytearray(copy.read_bytes())
    content[MIB] ^= 1
    copy.write_bytes(content)
    difference = blk_clients.first_difference(socket, copy)
    assert difference is not None
    assert f"offset {MIB}" in difference

    blk_clients.write_image(copy, socket)
    assert image.read_bytes() == content
