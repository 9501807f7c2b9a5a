"""Writes the archive format of Linux initramfs images (cpio "newc"), with no program's help.

Format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

_TRAILER = "TRAILER!!!"


@dataclass
class Archive:
    """Files to be unpacked by the guest kernel; paths have no leading slash.

    Parent folders are added by themselves. Adding a path twice keeps the later content.
    """

    _entries: dict[str, tuple[int, bytes, tuple[int, int]]] = field(default_factory=dict)

    def add_file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Adds a regular file."""
        self._add(path, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def add_link(self, path: str, target: str) -> None:
        """Adds a symbolic link to `target`."""
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def add_folder(self, path: str) -> None:
        """Adds an empty folder."""
        self._add(path, stat.S_IFDIR | 0o755, b"")

    def add_character_device(self, path: str, major: int, minor: int) -> None:
        """Adds a character device node."""
        self._add(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def to_bytes(self) -> bytes:
        """The whole archive, a multiple of 4 bytes long."""
        chunks = []
        for inode, (path, (mode, content, device)) in enumerate(self._entries.items(), start=1):
            chunks.append(_entry(inode, path, mode, content, device))
        chunks.append(_entry(0, _TRAILER, 0, b"", (0, 0)))
        return b"".join(chunks)

    def _add(self, path: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        if not path or path.startswith("/"):
            raise ValueError(f"not a relative path: {path!r}")
        parent, _, _ = path.rpartition("/")
        if parent and parent not in self._entries:
            self.add_folder(parent)
        self._entries[path] = (mode, content, device)


def _entry(inode: int, path: str, mode: int, content: bytes, device: tuple[int, int]) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    numbers = (inode, mode, 0, 0, links, 0, len(content), 0, 0, *device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
