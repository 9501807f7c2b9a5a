"""Enough of SPDK's JSON-RPC to give its vhost target a disk."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from vringd.bench.lab.errors import SampleError
from vringd.bench.lab.setup import Kind


def call(path: Path, method: str, timeout: float = 10.0, **params: Any) -> Any:
    """Call `method` over the Unix socket `path` and return its result.

    Raises `SampleError` for an error answer, and `OSError` when there is no server.
    """
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout)
        channel.connect(str(path))
        channel.sendall(json.dumps(request).encode())
        text = b""
        while True:
            part = channel.recv(65536)
            if not part:
                raise SampleError(f"SPDK closed its RPC socket during {method}")
            text += part
            try:
                answer = json.loads(text)
            except ValueError:
                continue
            if "error" in answer:
                raise SampleError(f"SPDK's {method} failed: {answer['error'].get('message')}")
            return answer["result"]


def attach_disk(rpc: Path, kind: Kind, controller: str, file: str | None, size: int) -> None:
    """Create a null bdev of `size` bytes, or an AIO bdev on `file`, behind `controller`.

    Raises what :func:`call` raises.
    """
    if file is None:
        call(rpc, "bdev_null_create", name="d", num_blocks=size // 512, block_size=512)
    else:
        call(rpc, "bdev_aio_create", name="d", filename=file, block_size=512)
    if kind == "blk":
        call(rpc, "vhost_create_blk_controller", ctrlr=controller, dev_name="d")
        return
    call(rpc, "vhost_create_scsi_controller", ctrlr=controller)
    call(
        *(rpc, "vhost_scsi_controller_add_target"),
        ctrlr=controller,
        scsi_target_num=0,
        bdev_name="d",
    )


def answers(rpc: Path) -> bool:
    """Whether an RPC server listens on `rpc` and answers within a second."""
    try:
        call(rpc, "rpc_get_methods", timeout=1.0)
    except (OSError, SampleError):
        return False
    return True
