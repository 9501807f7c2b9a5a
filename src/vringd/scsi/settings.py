"""What a user chooses about a logical unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnitSettings:
    """Identity and behaviour of a logical unit; checked by `ScsiUnit`, which raises ValueError.

    type: "disk" or "cdrom". vendor, product, revision: at most 8, 16 and 4 printable ASCII
    characters. serial, device_id: at most 63 printable ASCII characters; device_id is the serial
    number if it is empty. wwn: a 64-bit NAA identifier, 0 for none. rotation_rate: rpm, 1 for a
    disk that does not rotate, 0 to say nothing. writable: False refuses writes (a CD-ROM is never
    writable). writethrough: the write cache begins switched off. thin: None for what the
    back-end can do. max_transfer: most bytes of one command, 0 for what the data buffers allow.
    pr_file: path of the file that keeps persistent reservations; None: they end with the daemon.
    """

    type: str = "disk"
    vendor: str = "vringd"
    product: str = ""
    revision: str = ""
    serial: str = ""
    device_id: str = ""
    wwn: int = 0
    rotation_rate: int = 0
    removable: bool = False
    writable: bool = True
    writethrough: bool = False
    thin: bool | None = None
    max_transfer: int = 0
    pr_file: str | None = None
