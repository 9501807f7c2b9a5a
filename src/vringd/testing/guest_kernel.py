"""The test guest's kernel: where its files are, and its modules in loading order."""

from __future__ import annotations

import lzma
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vringd.testing.peers import (
    INSTALL_HINT,
    PeerMissingError,
    cache_directory,
    find,
    run_peer,
)

_STAMP = ".vringd-stamp"


@dataclass(frozen=True)
class GuestKernel:
    """An unpacked kernel package."""

    image: Path
    modules: Path
    version: str

    def fastest_image(self, folder: Path) -> Path:
        """The image that boots quickest: without its own decompressor if possible.

        An emulated processor takes a second to decompress the kernel, this one does it
        once and keeps the result in `folder`. Falls back to the packaged image when that is
        not a zstd-compressed x86 one.
        """
        direct = folder / f"vmlinux-{self.version}"
        if direct.exists():
            return direct
        payload = _zstd_payload(self.image.read_bytes())
        if payload is None or find("zstd") is None:
            return self.image
        temporary = direct.with_name(f".{direct.name}.{os.getpid()}")
        compressed = temporary.with_name(f"{temporary.name}.zst")
        try:
            compressed.write_bytes(payload)
            run_peer(
                *("zstd", "--quiet", "--force", "-d", str(compressed), "-o", str(temporary)),
                share=[folder],
            )
            temporary.replace(direct)
        finally:
            compressed.unlink(missing_ok=True)
            temporary.unlink(missing_ok=True)
        return direct

    def load_order(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The modules `names` and those they need, each after what it needs.

        Pairs of a module's name and its content. A module that is built into the kernel is
        left out; `PeerMissingError` when one is in neither place.
        """
        builtin = {
            _module_name(Path(line))
            for line in (self.modules / "modules.builtin").read_text().splitlines()
        }
        files = {_module_name(path): path for path in self.modules.rglob("*.ko*")}
        order: dict[str, bytes] = {}

        def add(name: str) -> None:
            if name in order or name in builtin:
                return
            if name not in files:
                raise PeerMissingError(f"kernel {self.version} has no module {name}")
            content = _read_module(files[name])
            for needed in _needed_modules(content):
                add(needed)
            order[name] = content

        for name in names:
            add(name.replace("-", "_"))
        return list(order.items())


def find_kernel() -> GuestKernel | None:
    """The kernel that tools/setup-peers unpacked, or None."""
    root = cache_directory() / "guest-kernel"
    if not (root / _STAMP).exists():
        return None
    images = sorted((root / "boot").glob("vmlinuz-*"))
    if not images:
        return None
    version = images[-1].name.removeprefix("vmlinuz-")
    return GuestKernel(images[-1], root / "usr/lib/modules" / version, version)


def require_kernel() -> GuestKernel:
    """As :func:`find_kernel`; raises `PeerMissingError` instead of returning None."""
    kernel = find_kernel()
    if kernel is None:
        raise PeerMissingError(f"the guest kernel is not installed: {INSTALL_HINT}")
    return kernel


def _zstd_payload(image: bytes) -> bytes | None:
    """The compressed kernel inside an x86 boot image, or None when it is something else.

    Layout: Documentation/arch/x86/boot.rst of the kernel (setup_sects, payload_offset,
    payload_length; the last 4 bytes of the payload are the uncompressed size).
    """
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return None
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length - 4]
    return payload if payload.startswith(b"\x28\xb5\x2f\xfd") else None


def _module_name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def _read_module(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _needed_modules(content: bytes) -> list[str]:
    # The .modinfo section is a run of NUL-terminated "key=value" strings.
    start = content.find(b"\0depends=")
    if start < 0:
        return []
    value = content[start + len(b"\0depends=") :].split(b"\0", 1)[0].decode()
    return [name.replace("-", "_") for name in value.split(",") if name]
