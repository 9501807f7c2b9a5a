"""Opens the block nodes that the options describe."""

from __future__ import annotations

from vringd.block.backend import BlockBackend
from vringd.block.file import FileBackend
from vringd.block.locking import InUseError
from vringd.block.null import NullBackend
from vringd.control.errors import OptionError, ResourceError, describe
from vringd.control.schema import BlockdevOptions, FileOptions


def open_backend(options: BlockdevOptions) -> BlockBackend:
    """Raises OptionError or ResourceError with the node, what is wrong and the remedy."""
    where = options.origin or f"blockdev {options.node_name}"
    if not isinstance(options, FileOptions):
        return NullBackend(
            options.node_name,
            size=options.size,
            latency_ns=options.latency_ns,
            cpu_ns=options.cpu_ns,
            parallelism=options.parallelism,
            read_zeroes=options.read_zeroes,
            read_only=options.read_only,
            block_size=options.logical_block_size,
        )
    try:
        return FileBackend(
            options.node_name,
            options.filename,
            driver=options.driver,
            aio=options.aio,
            cache_direct=options.cache.direct,
            cache_no_flush=options.cache.no_flush,
            discard=options.discard,
            detect_zeroes=options.detect_zeroes,
            read_only=options.read_only,
            auto_read_only=options.auto_read_only,
            locking_mode="off" if options.force_share else options.locking,
            registered_buffers=options.registered_buffers,
        )
    except InUseError as error:
        raise ResourceError(
            f"{where}: cannot lock {options.filename!r}: {error}; stop it, or use"
            " read-only=on,force-share=on to read along without a lock"
        ) from error
    except OSError as error:
        raise ResourceError(
            f"{where}: cannot open {options.filename!r}: {describe(error)}"
        ) from error
    except ValueError as error:
        raise OptionError(f"{where}: {options.filename!r} {error}") from error
