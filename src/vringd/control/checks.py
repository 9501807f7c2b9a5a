"""What a single option cannot know: whether all of them fit together."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping

from vringd.control.errors import OptionError
from vringd.control.mapping import plan_iothreads
from vringd.control.schema import (
    SECTOR,
    BlockdevOptions,
    ExportOptions,
    FdAddress,
    FileOptions,
    NullOptions,
    ScsiDeviceOptions,
    ServeOptions,
    UnixAddress,
    VhostUserBlkOptions,
    VhostUserScsiOptions,
)
from vringd.control.values import show_size

# struct sockaddr_un has 108 bytes for the path and its final NUL.
MAX_SOCKET_PATH = 107


def check(options: ServeOptions, merged: Mapping[str, str]) -> None:
    """Raises OptionError for the first contradiction.

    `merged` tells for a node below a raw one the name under which it is reached.
    """
    _check_unique((thread.id, thread.origin) for thread in options.iothreads)
    _check_unique((export.id, export.origin) for export in options.exports)
    for thread in options.iothreads:
        if thread.thread_pool_min > thread.thread_pool_max:
            raise OptionError(
                f"{thread.origin}: thread-pool-min={thread.thread_pool_min} is more than"
                f" thread-pool-max={thread.thread_pool_max}; lower the one or raise the other"
            )
    _check_addresses(options.exports)
    for node in options.blockdevs:
        _check_node(node)
    users = _NodeUsers(options, merged)
    for export in options.exports:
        if isinstance(export, VhostUserScsiOptions):
            _check_scsi(export, users)
        else:
            users.add(export.origin, export.node_name, export.writable)
            _check_sizes(export)
        _check_segments(export)
    plan_iothreads(options.iothreads, options.exports)


def _check_unique(names: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, origin in names:
        if name in seen:
            raise OptionError(
                f"{origin}: the id is already used by {seen[name]}; give each its own id"
            )
        seen[name] = origin


def _check_addresses(exports: Iterable[ExportOptions]) -> None:
    seen: dict[str | int, str] = {}
    for export in exports:
        if isinstance(export.addr, UnixAddress):
            path = export.addr.path
            if len(os.fsencode(path)) > MAX_SOCKET_PATH:
                raise OptionError(
                    f"{export.origin}: addr.path={path}: the path has {len(os.fsencode(path))}"
                    f" bytes, a socket's may have {MAX_SOCKET_PATH}"
                )
            key: str | int = os.path.abspath(path)
            shown = f"addr.path={path}"
        else:
            assert isinstance(export.addr, FdAddress)
            key = export.addr.fd
            shown = f"addr.str={export.addr.fd}"
        if key in seen:
            raise OptionError(
                f"{export.origin}: {shown} is already used by {seen[key]};"
                " give each export its own socket"
            )
        seen[key] = export.origin


def _check_node(node: BlockdevOptions) -> None:
    if node.force_share and not node.read_only:
        raise OptionError(f"{node.origin}: force-share=on needs read-only=on")
    if node.detect_zeroes == "unmap" and node.discard != "unmap":
        raise OptionError(f"{node.origin}: detect-zeroes=unmap needs discard=unmap")
    if isinstance(node, FileOptions) and node.aio == "native" and not node.cache.direct:
        raise OptionError(
            f"{node.origin}: aio=native needs cache.direct=on (or use aio=io_uring or threads)"
        )
    if isinstance(node, NullOptions) and node.size % node.logical_block_size:
        raise OptionError(
            f"{node.origin}: size={show_size(node.size)} is not a multiple of the block size,"
            f" {node.logical_block_size} bytes"
        )


class _NodeUsers:
    """Who shows which node, as exports are looked at one after the other."""

    def __init__(self, options: ServeOptions, merged: Mapping[str, str]) -> None:
        self._nodes = {node.node_name: node for node in options.blockdevs}
        self._merged = merged
        self._writers: dict[str, str] = {}
        self._devices: dict[str, tuple[ScsiDeviceOptions, str]] = {}

    def add(self, origin: str, name: str, writable: bool, share: bool = False) -> None:
        """One more user; share: it accepts others that write. Raises OptionError."""
        if name in self._merged:
            raise OptionError(
                f"{origin}: node '{name}' is part of node '{self._merged[name]}';"
                f" export that with node-name={self._merged[name]}"
            )
        if name not in self._nodes:
            raise OptionError(
                f"{origin}: node '{name}' does not exist;"
                f" define it with --blockdev driver=…,node-name={name}"
            )
        if not writable:
            return
        if self._nodes[name].read_only:
            raise OptionError(
                f"{origin}: writable=on, but node '{name}' is read-only; drop one of the two"
            )
        if name in self._writers and not share:
            raise OptionError(
                f"{origin}: writable=on, but {self._writers[name]} writes to node '{name}'"
                " already; only one export may"
            )
        self._writers[name] = origin

    def add_device(self, origin: str, device: ScsiDeviceOptions) -> None:
        """One more SCSI device. Raises OptionError."""
        if device.node_name is None:
            if not (device.removable or device.cdrom):
                raise OptionError(
                    f"{origin}: node-name is missing; only with removable=on or cdrom=on may a"
                    " device have no medium"
                )
            return
        other, where = self._devices.setdefault(device.node_name, (device, origin))
        if other is not device:
            if not (other.share_rw and device.share_rw):
                raise OptionError(
                    f"{origin}: {where} shows node '{device.node_name}' already; two devices may"
                    " with share-rw=on for both"
                )
            if other.without_address != device.without_address:
                raise OptionError(
                    f"{origin}: {where} shows node '{device.node_name}' with other options; it is"
                    " one unit, so give both the same (but for target and lun)"
                )
        self.add(origin, device.node_name, device.writable, share=other is not device)


def _check_scsi(export: VhostUserScsiOptions, users: _NodeUsers) -> None:
    seen: dict[tuple[int, int], int] = {}
    nodes: dict[tuple[int, str], int] = {}
    for number, device in enumerate(export.devices):
        origin = f"{export.origin}: devices.{number}"
        target = number if device.target is None else device.target
        first = seen.setdefault((target, device.lun), number)
        if first != number:
            raise OptionError(
                f"{origin}: target={target},lun={device.lun} is devices.{first} already;"
                " choose another"
            )
        if target > 255:
            raise OptionError(f"{origin}: there are 256 targets at most; give target and lun")
        same = nodes.setdefault((target, device.node_name or f"#{number}"), number)
        if same != number:
            raise OptionError(
                f"{origin}: devices.{same} shows node '{device.node_name}' at target {target}"
                " already; choose another target"
            )
        if device.cdrom and device.writable:
            raise OptionError(
                f"{origin}: writable=on, but a CD-ROM is read-only; drop one of the two"
            )
        logical = device.logical_block_size or SECTOR
        if device.physical_block_size is not None and device.physical_block_size < logical:
            raise OptionError(
                f"{origin}: physical-block-size={device.physical_block_size} is less than"
                f" logical-block-size={logical}"
            )
        users.add_device(origin, device)
    if " " in export.initiator or not export.initiator.isascii():
        raise OptionError(
            f"{export.origin}: initiator={export.initiator}: expected ASCII characters, no blanks"
        )


def _check_sizes(export: VhostUserBlkOptions) -> None:
    logical = export.logical_block_size or SECTOR
    physical = export.physical_block_size
    if physical is not None and physical < logical:
        raise OptionError(
            f"{export.origin}: physical-block-size={physical} is less than"
            f" logical-block-size={logical}"
        )
    if export.opt_io_size % logical:
        raise OptionError(
            f"{export.origin}: opt-io-size={export.opt_io_size} is not a multiple of"
            f" logical-block-size={logical}"
        )


def _check_segments(export: ExportOptions) -> None:
    # Two descriptors of every chain are taken by the request's header and its status.
    if export.seg_max is not None and export.seg_max > max(1, export.queue_size - 2):
        raise OptionError(
            f"{export.origin}: seg-max={export.seg_max} does not fit queue-size="
            f"{export.queue_size}; it may be {max(1, export.queue_size - 2)} at most"
        )
