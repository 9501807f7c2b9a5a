"""The test guest's root file system: an initramfs made of packaged programs.

It holds busybox, some real programs with the libraries they need, kernel modules, and an
init script that obeys commands from the host (see :mod:`vringd.testing.guest`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vringd.testing.cpio import Archive
from vringd.testing.guest_kernel import GuestKernel, require_kernel
from vringd.testing.peers import (
    INSTALL_HINT,
    PeerMissingError,
    cache_directory,
    find,
    missing_reason,
    peer_tree,
    run_peer,
)

AGENT_PORT: Final = "vringd.agent"
AGENT_READY: Final = "vringd-guest-ready"

DEFAULT_PROGRAMS: Final = ("fio", "mkfs.ext4", "e2fsck", "resize2fs", "blkdiscard")
DEFAULT_MODULES: Final = ("virtio_blk", "virtio_scsi", "sd_mod", "sg", "virtiofs", "ext4")

SCSI_PROGRAMS: Final = (
    *DEFAULT_PROGRAMS,
    *("sg_inq", "sg_vpd", "sg_luns", "sg_reset", "sg_persist", "sg_unmap", "sg_write_same"),
    *("sg_compare_and_write", "sg_get_lba_status", "sg_opcodes", "sg_readcap"),
    "iscsi-test-cu",
)
SCSI_MODULES: Final = (*DEFAULT_MODULES, "sr_mod")

_KEPT_IMAGES: Final = 4

# Obeys lines of two words from the agent port: a word to mark the answer with, and a shell
# command in base64. Every command is run by a shell of its own, with no input.
_INIT: Final = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" || echo "vringd-guest: cannot load $module"
done
port=
for entry in /sys/class/virtio-ports/*; do
    if [ "$(cat "$entry/name")" = @PORT@ ]; then port=/dev/${entry##*/}; fi
done
if [ -z "$port" ]; then echo "vringd-guest: no agent port"; poweroff -f; fi
exec 0<>"$port" 1>&0 2>&0 # a port can be opened only once
echo @READY@
while read -r mark command; do
    echo "$command" | base64 -d >/run/command
    printf '\\n%s begins\\n' "$mark"
    sh /run/command </dev/null
    printf '\\n%s ends %d\\n' "$mark" $?
done
poweroff -f
"""


@dataclass(frozen=True)
class GuestImage:
    """What a guest boots: a kernel and an initramfs."""

    kernel: Path
    initramfs: Path


def image_missing_reason(programs: Sequence[str] = DEFAULT_PROGRAMS) -> str | None:
    """Why no image can be built (the sentence a test skips with), or None."""
    reason = missing_reason("busybox", *programs)
    if reason is not None:
        return reason
    try:
        require_kernel()
    except PeerMissingError as error:
        return str(error)
    return None


def guest_image(
    *,
    programs: Sequence[str] = DEFAULT_PROGRAMS,
    modules: Sequence[str] = DEFAULT_MODULES,
) -> GuestImage:
    """The image with these programs and kernel modules, built when it is not in the cache.

    The cache is keyed by everything that goes in, so it is never stale. Raises
    `PeerMissingError` when a program, a module or the kernel is not installed.
    """
    kernel = require_kernel()
    reason = missing_reason("busybox", *programs)
    if reason is not None:
        raise PeerMissingError(reason)
    folder = cache_directory() / "guest-images"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_fingerprint(kernel, programs, modules)}.cpio"
    if target.exists():
        os.utime(target)
    else:
        _write_whole(target, _build(kernel, programs, modules).to_bytes())
        _remove_oldest(folder)
    return GuestImage(kernel.fastest_image(folder), target)


def _fingerprint(kernel: GuestKernel, programs: Sequence[str], modules: Sequence[str]) -> str:
    parts = [Path(__file__).read_text(), kernel.version, *programs, "", *modules, ""]
    for name in ("busybox", *programs):
        path = _host_path(name)
        details = path.stat()
        parts.append(f"{path} {details.st_size} {details.st_mtime_ns}")
    # Libraries change only when packages do.
    packages = (peer_tree() or Path("/")) / "var/lib/dpkg/status"
    if packages.exists():
        parts.append(str(packages.stat().st_mtime_ns))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _build(kernel: GuestKernel, programs: Sequence[str], modules: Sequence[str]) -> Archive:
    archive = Archive()
    for folder in ("usr/bin", "usr/lib", "dev", "proc", "sys", "tmp", "run", "mnt", "etc"):
        archive.add_folder(folder)
    for name in ("bin", "sbin", "lib", "lib64"):
        archive.add_link(name, "usr/bin" if name.endswith("bin") else "usr/lib")
    archive.add_link("usr/sbin", "bin")
    archive.add_link("usr/lib64", "lib")
    archive.add_character_device("dev/console", 5, 1)
    archive.add_link("etc/mtab", "/proc/self/mounts")
    archive.add_file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    archive.add_file("etc/group", b"root:x:0:\n")
    for applet in run_peer("busybox", "--list").stdout.split():
        archive.add_link(f"usr/bin/{applet}", "busybox")
    # After the links: busybox lists itself, and a later entry replaces an earlier one.
    archive.add_file("usr/bin/busybox", _host_path("busybox").read_bytes(), executable=True)
    for program in programs:
        archive.add_file(f"usr/bin/{program}", _host_path(program).read_bytes(), executable=True)
    for name, path in _libraries(programs):
        archive.add_file(name, path.read_bytes(), executable=True)
    order = kernel.load_order(modules)
    for module, content in order:
        archive.add_file(f"modules/{module}.ko", content)
    archive.add_file("modules/order", "".join(f"{module}\n" for module, _ in order).encode())
    init = _INIT.replace("@PORT@", AGENT_PORT).replace("@READY@", AGENT_READY)
    archive.add_file("init", init.encode(), executable=True)
    return archive


def _host_path(program: str) -> Path:
    """Where this machine sees the program's file, inside the tree or not."""
    peer = find(program)
    if peer is None:
        raise PeerMissingError(f"{program} is not installed: {INSTALL_HINT}")
    return _outside(peer.tree, peer.path)


def _outside(tree: Path | None, path: str) -> Path:
    """Follows symbolic links as the tree's own programs would; the result is outside."""
    if tree is None:
        return Path(path).resolve()
    for _ in range(40):
        inside = Path(path)
        for ancestor in (*reversed(inside.parents), inside):
            seen = tree / ancestor.relative_to("/")
            if seen.is_symlink():
                target = os.path.normpath(ancestor.parent / os.readlink(seen))
                path = os.path.normpath(Path(target) / inside.relative_to(ancestor))
                break
        else:
            return tree / inside.relative_to("/")
    raise OSError(f"{path}: too many symbolic links")


def _libraries(programs: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Shared objects that the programs load: (path in the guest, file here)."""
    found: dict[str, Path] = {}
    for program in programs:
        peer = find(program)
        assert peer is not None  # the caller has checked
        listing = run_peer("ldd", peer.path, check=False).stdout
        for line in listing.splitlines():
            # "libc.so.6 => /lib/.../libc.so.6 (0x...)" or "/lib64/ld-linux... (0x...)"
            words = line.split()
            path = words[2] if len(words) > 2 and words[1] == "=>" else words[0]
            if not path.startswith("/"):
                continue
            name = path.removeprefix("/usr").removeprefix("/").replace("lib64/", "lib/", 1)
            found[f"usr/{name}"] = _outside(peer.tree, path)
    yield from found.items()


def _write_whole(target: Path, content: bytes) -> None:
    """Writes a file that other processes see either complete or not at all."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".building-")
    try:
        with os.fdopen(handle, "wb") as output:
            output.write(content)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _remove_oldest(folder: Path) -> None:
    images = sorted(folder.glob("*.cpio"), key=lambda path: path.stat().st_mtime)
    for image in images[:-_KEPT_IMAGES]:
        image.unlink(missing_ok=True)
