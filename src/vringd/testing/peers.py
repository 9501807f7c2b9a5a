"""Programs nobody here wrote (QEMU, fio, nbdkit, ...), found and run for the tests.

``tools/setup-peers`` installs them: from the system's packages on Debian 13, and into a
private Debian 13 tree on Debian 12, whose QEMU is too old. This module hides the
difference: :func:`peer_command` gives an argument list that works on both.

A program from the tree runs in a mount namespace of its own, with ``/proc``, ``/sys`` and
``/dev`` of this machine and every folder in `share` bound at the same path inside, and
then in a chroot. So a Unix socket or a file below a shared folder has one name on both
sides. The argument list execs its way to the program: the process that was started *is*
the program, and signals reach it. The program is killed when the thread that started it
ends (so start long-lived ones from a thread that lives as long as they do).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

INSTALL_HINT: Final = "run tools/setup-peers"

_SUITE: Final = "trixie"
_STAMP: Final = ".vringd-stamp"
_SEARCH_PATH: Final = ("usr/local/bin", "usr/bin", "usr/sbin", "usr/libexec", "usr/lib/qemu")

# Arguments: the tree, the shared folders, "--", the program and its arguments. /tmp and /run
# of the tree are covered by empty ones, so that mount points made there vanish with the
# namespace.
_ENTER_TREE: Final = """\
tree=$1; shift
mount --rbind /proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs tmpfs "$tree/tmp"
mount -t tmpfs tmpfs "$tree/run"
while [ "$1" != -- ]; do
    mkdir -p "$tree$1"
    mount --rbind "$1" "$tree$1"
    shift
done
shift
unset LD_PRELOAD LD_LIBRARY_PATH
exec setpriv --pdeathsig KILL chroot "$tree" "$@"
"""


class PeerMissingError(RuntimeError):
    """A peer program is not installed; the message says how to get it."""


class PeerFailedError(RuntimeError):
    """A peer program ended with a failure, or too late; the message has its output."""


@dataclass(frozen=True)
class Peer:
    """One installed program.

    `path` is absolute inside `tree`, or on this machine when `tree` is None.
    """

    program: str
    path: str
    tree: Path | None

    def command(self, *arguments: str, share: Sequence[Path] = ()) -> list[str]:
        """The argument list that runs the program with `arguments`.

        Every folder in `share` must exist and be absolute; it is visible to the program at
        the same path. (Without a tree everything is visible anyway.) In the tree the
        program starts in ``/``, so file arguments must be absolute.
        """
        for folder in share:
            if not folder.is_absolute() or not folder.is_dir():
                raise ValueError(f"share: {folder} is not an existing absolute folder")
        if self.tree is None:
            return ["setpriv", "--pdeathsig", "KILL", self.path, *arguments]
        namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
        folders = sorted({str(folder) for folder in share})
        return [
            *("unshare", *namespaces, "sh", "-euc", _ENTER_TREE, "sh", str(self.tree)),
            *(*folders, "--", self.path, *arguments),
        ]


def cache_directory() -> Path:
    """Where the tree, the guest kernel and built guest images are kept."""
    if own := os.environ.get("VRINGD_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vringd"


def peer_tree() -> Path | None:
    """The finished Debian 13 tree, or None when there is none."""
    tree = cache_directory() / _SUITE
    return tree if (tree / _STAMP).exists() else None


def _host_is_too_old() -> bool:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return False
    version = release.get("VERSION_ID", "")
    return release.get("ID") == "debian" and version.isdigit() and int(version) < 13


def find(program: str) -> Peer | None:
    """The program from the tree if there is one, else from this machine if it is new enough."""
    tree = peer_tree()
    if tree is not None:
        for folder in _SEARCH_PATH:
            if os.access(tree / folder / program, os.X_OK):
                return Peer(program, f"/{folder}/{program}", tree)
        return None
    if _host_is_too_old():
        return None
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"/{name}" for name in _SEARCH_PATH)])
    found = shutil.which(program, path=path)
    return Peer(program, found, None) if found else None


def missing_reason(*programs: str) -> str | None:
    """The sentence a test skips with, or None when all `programs` are there."""
    absent = [program for program in programs if find(program) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f"{', '.join(absent)} {verb} not installed: {INSTALL_HINT}"


def peer_command(program: str, *arguments: str, share: Sequence[Path] = ()) -> list[str]:
    """As :meth:`Peer.command`; raises `PeerMissingError` when `program` is not installed."""
    peer = find(program)
    if peer is None:
        raise PeerMissingError(missing_reason(program))
    return peer.command(*arguments, share=share)


def run_peer(
    program: str,
    *arguments: str,
    share: Sequence[Path] = (),
    timeout: float = 60.0,
    check: bool = True,
    standard_input: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and returns what it printed.

    `timeout` is in seconds. Raises `PeerFailedError` when it ends too late or, with `check`,
    with a status other than 0.
    """
    command = peer_command(program, *arguments, share=share)
    shown = " ".join((program, *arguments))
    try:
        done = subprocess.run(
            command,
            input=standard_input,
            stdin=subprocess.DEVNULL if standard_input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = "".join(_as_text(part) for part in (error.stdout, error.stderr))
        raise PeerFailedError(f"{shown}: not finished after {timeout} s\n{printed}") from None
    if check and done.returncode != 0:
        raise PeerFailedError(f"{shown}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def _as_text(printed: object) -> str:
    if isinstance(printed, bytes):
        return printed.decode(errors="replace")
    return printed if isinstance(printed, str) else ""


@cache
def peer_version(program: str) -> str:
    """The first line of ``program --version``."""
    return run_peer(program, "--version", timeout=20).stdout.splitlines()[0]
