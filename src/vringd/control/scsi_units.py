"""Logical units by block node: one each, however many exports show it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable

from vringd.block.backend import BlockBackend
from vringd.block.null import NullBackend
from vringd.control.errors import OptionError, ResourceError, describe
from vringd.control.schema import ScsiDeviceOptions
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit

_CDROM_BLOCK = 2048


@dataclasses.dataclass
class SharedUnit:
    """A logical unit, its disk, and whose turn it is to manage its tasks."""

    unit: ScsiUnit
    backend: BlockBackend
    options: ScsiDeviceOptions
    has_medium: bool = True
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    on_mode_change: list[Callable[[], None]] = dataclasses.field(default_factory=list)

    @property
    def users(self) -> int:
        """How many devices of exports show the unit."""
        return len(self.on_mode_change)

    def watch(self) -> None:
        """Call `on_mode_change` whenever an initiator has changed mode parameters."""
        asyncio.get_running_loop().add_reader(self.unit.change_fd, self._mode_changed)

    def _mode_changed(self) -> None:
        os.eventfd_read(self.unit.change_fd)
        for tell in self.on_mode_change:
            tell()

    def close(self) -> None:
        """No export uses the unit any more."""
        asyncio.get_running_loop().remove_reader(self.unit.change_fd)
        self.unit.close()

    def refresh_size(self) -> None:
        """Look at the disk's size again. Raises OSError."""
        if self.has_medium:
            self.unit.set_capacity(self.backend.refresh_size())


class ScsiUnits:
    """Makes units when they are first asked for, and closes all of them at the end."""

    def __init__(self) -> None:
        self._by_node: dict[str, SharedUnit] = {}
        self._all: list[SharedUnit] = []

    def open(self, options: ScsiDeviceOptions, backend: BlockBackend | None) -> SharedUnit:
        """The unit for a device of an export; backend: its node, None for an empty drive. Raises
        OptionError where options disagree with the disk or with another device that shows it,
        ResourceError for pr-file."""
        shared = None if options.node_name is None else self._by_node.get(options.node_name)
        if shared is not None and shared.users:
            check_sharing(shared.options, options)
            return shared
        if shared is not None:  # shown before, by devices that are gone
            self._all.remove(shared)
            shared.close()
        shared = _make_unit(options, backend)
        shared.watch()
        self._all.append(shared)
        if options.node_name is not None:
            self._by_node[options.node_name] = shared
        return shared

    def close(self) -> None:
        """Close all units; no export uses them any more."""
        for shared in self._all:
            shared.close()
        self._by_node.clear()
        self._all.clear()


def check_sharing(one: ScsiDeviceOptions, other: ScsiDeviceOptions) -> None:
    """May two devices show the same node? Raises OptionError."""
    if not (one.share_rw and other.share_rw):
        raise OptionError(
            f"node '{one.node_name}' is shown by another device already; two devices may with"
            " share-rw=on for both"
        )
    if one.without_address != other.without_address:
        raise OptionError(
            f"node '{one.node_name}' is shown by another device with other options; it is one"
            " unit, so give both the same (but for target and lun)"
        )


def unit_settings(options: ScsiDeviceOptions, writable: bool) -> UnitSettings:
    """What the options say of the unit itself."""
    return UnitSettings(
        type="cdrom" if options.cdrom else "disk",
        vendor=options.vendor,
        product=options.product,
        revision=options.ver,
        serial=options.serial,
        device_id=options.device_id,
        wwn=options.wwn,
        rotation_rate=options.rotation_rate,
        removable=options.removable or options.cdrom,
        writable=writable,
        writethrough=options.writethrough,
        pr_file=options.pr_file,
    )


def _make_unit(options: ScsiDeviceOptions, backend: BlockBackend | None) -> SharedUnit:
    empty = backend is None
    if backend is None:
        backend = NullBackend("#empty", size=0, read_only=True)
    limits = backend.limits
    block = options.logical_block_size or limits.block_size
    if block < limits.block_size:
        raise OptionError(
            f"logical-block-size={block} is less than the {limits.block_size} bytes that node"
            f" {backend.node_name!r} can address; use logical-block-size={limits.block_size}, or"
            " cache.direct=off for the node"
        )
    physical = max(block, options.physical_block_size or limits.physical_block_size)
    if options.cdrom and limits.block_size <= _CDROM_BLOCK:
        block, physical = limits.block_size, limits.physical_block_size
    limits = dataclasses.replace(limits, block_size=block, physical_block_size=physical)
    writable = options.writable and not backend.read_only
    try:
        unit = ScsiUnit(unit_settings(options, writable), limits, None if empty else backend.size)
    except ValueError as error:
        raise OptionError(str(error)) from error
    except OSError as error:
        raise ResourceError(f"pr-file={options.pr_file}: {describe(error)}") from error
    return SharedUnit(unit, backend, options, has_medium=not empty)
