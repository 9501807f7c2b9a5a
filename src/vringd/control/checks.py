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
    ServeOptions,
    UnixAddress,
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
    nodes = {node.node_name: node for node in options.blockdevs}
    writers: dict[str, str] = {}
    for export in options.exports:
        _check_export_node(export, nodes, merged, writers)
        _check_sizes(export)
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


def _check_export_node(
    export: ExportOptions,
    nodes: Mapping[str, BlockdevOptions],
    merged: Mapping[str, str],
    writers: dict[str, str],
) -> None:
    """`writers` tells which export writes to a node; a writable export is added."""
    name = export.node_name
    if name in merged:
        raise OptionError(
            f"{export.origin}: node '{name}' is part of node '{merged[name]}';"
            f" export that with node-name={merged[name]}"
        )
    if name not in nodes:
        raise OptionError(
            f"{export.origin}: node '{name}' does not exist;"
            f" define it with --blockdev driver=…,node-name={name}"
        )
    if not export.writable:
        return
    if nodes[name].read_only:
        raise OptionError(
            f"{export.origin}: writable=on, but node '{name}' is read-only; drop one of the two"
        )
    if name in writers:
        raise OptionError(
            f"{export.origin}: writable=on, but {writers[name]} writes to node '{name}' already;"
            " only one export may"
        )
    writers[name] = export.origin


def _check_sizes(export: ExportOptions) -> None:
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
    # Two descriptors of every chain are taken by the request's header and its status.
    if export.seg_max is not None and export.seg_max > max(1, export.queue_size - 2):
        raise OptionError(
            f"{export.origin}: seg-max={export.seg_max} does not fit queue-size="
            f"{export.queue_size}; it may be {max(1, export.queue_size - 2)} at most"
        )
