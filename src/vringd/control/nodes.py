"""Block nodes as users write them, down to the ones that hold bytes.

`driver=raw` stands over nearly every disk on a QEMU command line and changes nothing
about the bytes, so a raw node and the node below it become one, under the raw node's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from vringd.control.errors import OptionError
from vringd.control.fields import read
from vringd.control.schema import (
    BlockdevOptions,
    CacheOptions,
    FileOptions,
    NullOptions,
    RawOptions,
)
from vringd.control.values import show

Node = NullOptions | FileOptions | RawOptions

_DRIVERS: dict[str, type[NullOptions] | type[FileOptions] | type[RawOptions]] = {
    "file": FileOptions,
    "host_device": FileOptions,
    "null-co": NullOptions,
    "null-aio": NullOptions,
    "raw": RawOptions,
}


def read_node(values: Mapping[str, Any], origin: str) -> Node:
    """Reads the options of one node. Raises OptionError (without the origin)."""
    driver = values.get("driver")
    if driver is None:
        raise OptionError("driver is missing; vringd serves file, host_device, null-co, null-aio")
    if not isinstance(driver, str) or driver not in _DRIVERS:
        raise OptionError(
            f"unknown driver '{show(driver)}': vringd serves file, host_device, null-co, null-aio"
        )
    return read(_DRIVERS[driver], values, origin=origin)


def resolve(nodes: Iterable[Node]) -> tuple[tuple[BlockdevOptions, ...], dict[str, str]]:
    """Merges each raw node with the node below it.

    Returns the nodes that are left, and for each one that was merged away the name under
    which it is now reached. Raises OptionError for a name used twice, a child that is
    undefined or has two parents, and a circle.
    """
    by_name: dict[str, Node] = {}
    for node in nodes:
        if node.node_name in by_name:
            raise OptionError(
                f"{node.origin}: the name is already used by {by_name[node.node_name].origin};"
                " give each node its own node-name"
            )
        by_name[node.node_name] = node
    parents: dict[str, str] = {}
    for node in by_name.values():
        if isinstance(node, RawOptions) and isinstance(node.file, str):
            _adopt(node, node.file, by_name, parents)
    merged = {name: _top(name, by_name, parents) for name in parents}
    left = (node for name, node in by_name.items() if name not in parents)
    return tuple(_merge(node, by_name) for node in left), merged


def _adopt(
    parent: RawOptions, child: str, nodes: Mapping[str, Node], parents: dict[str, str]
) -> None:
    if child not in nodes:
        raise OptionError(
            f"{parent.origin}: file={child}: there is no such node;"
            f" define it with --blockdev driver=…,node-name={child}"
        )
    if child in parents:
        raise OptionError(
            f"{parent.origin}: file={child}: the node is already used by node {parents[child]!r}"
        )
    parents[child] = parent.node_name


def _top(name: str, nodes: Mapping[str, Node], parents: Mapping[str, str]) -> str:
    """The node without a parent above `name`."""
    top = name
    while top in parents:
        top = parents[top]
        if top == name:
            raise OptionError(f"{nodes[name].origin}: file: the node stands on itself")
    return top


def _merge(node: Node, nodes: Mapping[str, Node]) -> BlockdevOptions:
    """The node that does what `node` and all below it do together."""
    if not isinstance(node, RawOptions):
        return node
    child = nodes[node.file] if isinstance(node.file, str) else _inline(node, node.file)
    below = _merge(child, nodes)
    return dataclasses.replace(
        below,
        node_name=node.node_name,
        origin=node.origin,
        read_only=node.read_only or below.read_only,
        auto_read_only=node.auto_read_only or below.auto_read_only,
        force_share=node.force_share or below.force_share,
        cache=CacheOptions(
            direct=below.cache.direct, no_flush=node.cache.no_flush or below.cache.no_flush
        ),
        discard=below.discard if node.discard == "unmap" else "ignore",
        detect_zeroes=below.detect_zeroes if node.detect_zeroes == "off" else node.detect_zeroes,
    )


def _inline(parent: RawOptions, values: Mapping[str, Any]) -> Node:
    """Reads a node that is written inside `parent` (`file.driver=…`).

    As in QEMU it takes over access and cache options, and passes discards on.
    """
    inherited: dict[str, Any] = {
        "node-name": parent.node_name,
        "read-only": parent.read_only,
        "auto-read-only": parent.auto_read_only,
        "force-share": parent.force_share,
        "discard": "unmap",
    }
    cache = {"direct": parent.cache.direct, "no-flush": parent.cache.no_flush}
    own_cache = values.get("cache", {})
    combined = {**inherited, **values}
    combined["cache"] = {**cache, **own_cache} if isinstance(own_cache, dict) else own_cache
    try:
        return read_node(combined, parent.origin)
    except OptionError as error:
        raise OptionError(f"{parent.origin}: in file: {error}") from None
