"""Checks of options against this machine, before anything is opened.

They only make good messages: what changes afterwards is met again when it is opened.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable

from vringd.control.errors import ResourceError, describe
from vringd.control.schema import (
    ExportOptions,
    FileOptions,
    IOThreadOptions,
    ServeOptions,
    UnixAddress,
)


def check_host(options: ServeOptions) -> None:
    """Raises ResourceError for a CPU, file or socket that cannot be used as asked."""
    for thread in options.iothreads:
        _check_cpus(thread)
    writable = options.written_nodes
    files: dict[tuple[int, int], FileOptions] = {}
    for node in options.blockdevs:
        if isinstance(node, FileOptions):
            _check_file(node, node.node_name in writable, files)
    for export in options.exports:
        if isinstance(export.addr, UnixAddress):
            _check_socket_path(export, export.addr.path)
        else:
            _check_socket_fd(export, export.addr.fd)


def _check_cpus(thread: IOThreadOptions) -> None:
    allowed = os.sched_getaffinity(0)
    for cpu in thread.cpu_affinity or ():
        if cpu not in allowed:
            raise ResourceError(
                f"{thread.origin}: cpu-affinity: CPU {cpu} is not available; this process may"
                f" use {show_cpus(allowed)}"
            )


def _check_file(node: FileOptions, write: bool, files: dict[tuple[int, int], FileOptions]) -> None:
    """`files` tells which node has a file; this one is added."""
    where = f"{node.origin}: filename={node.filename}"
    try:
        status = os.stat(node.filename)
    except OSError as error:
        raise ResourceError(f"{where}: {describe(error)}") from error
    if node.driver == "file" and not stat.S_ISREG(status.st_mode):
        remedy = "use driver=host_device" if stat.S_ISBLK(status.st_mode) else "name a file"
        raise ResourceError(f"{where}: not a regular file; {remedy}")
    if node.driver == "host_device" and not stat.S_ISBLK(status.st_mode):
        remedy = "use driver=file" if stat.S_ISREG(status.st_mode) else "name a device"
        raise ResourceError(f"{where}: not a block device; {remedy}")
    if not os.access(node.filename, os.R_OK | (os.W_OK if write else 0)):
        verb = "reading and writing" if write else "reading"
        raise ResourceError(f"{where}: permission denied; {verb} it must be allowed")
    identity = (status.st_dev, status.st_ino)
    other = files.setdefault(identity, node)
    if other is not node and not (other.force_share or node.force_share) and write:
        raise ResourceError(
            f"{where}: {other.origin} is the same file; export one node instead of two"
        )


def _check_socket_path(export: ExportOptions, path: str) -> None:
    where = f"{export.origin}: addr.path={path}"
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ResourceError(f"{where}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ResourceError(f"{where}: permission denied; making files in {folder} must be allowed")
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # the usual case: there is nothing yet
    if not stat.S_ISSOCK(mode):
        raise ResourceError(f"{where}: exists and is not a socket; name another path")


def _check_socket_fd(export: ExportOptions, fd: int) -> None:
    where = f"{export.origin}: addr.str={fd}"
    try:
        with socket.socket(fileno=os.dup(fd)) as handle:
            unix_stream = (handle.family, handle.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise ResourceError(
            f"{where}: {describe(error)}; pass the socket down as that file descriptor"
        ) from error
    if not unix_stream:
        raise ResourceError(f"{where}: not a UNIX stream socket")


def show_cpus(cpus: Iterable[int]) -> str:
    """CPU numbers in list syntax: {0, 1, 2, 8} is 0-2,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
