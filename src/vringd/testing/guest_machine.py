"""The QEMU command line of a test guest.

The processors are emulated even where there is KVM: the same everywhere, and nested KVM was
seen to abort QEMU.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vringd.testing.guest_devices import VhostUserDevice, escaped
from vringd.testing.guest_image import AGENT_PORT, GuestImage, image_missing_reason
from vringd.testing.peers import missing_reason

_KERNEL_OPTIONS: Final = (
    "panic=0 quiet mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on "
    "cryptomgr.notests rcupdate.rcu_expedited=1 nowatchdog audit=0 apparmor=0 selinux=0"
)


@dataclass(frozen=True)
class Machine:
    """How a guest of one processor architecture is run.

    The CPU model is the oldest that serves: with QEMU's "max" a guest boots half
    a second slower, because more features are set up and then emulated. It has RDRAND:
    without a source of random numbers, whoever makes a UUID (mkfs four times) waits a second.
    """

    program: str
    machine: str
    cpu: str
    console: str


_MACHINES: Final = {
    "x86_64": Machine("qemu-system-x86_64", "q35", "Nehalem-v1,+rdrand", "ttyS0"),
    "aarch64": Machine("qemu-system-aarch64", "virt", "max", "ttyAMA0"),
}


@dataclass(frozen=True)
class GuestFiles:
    """Where a running guest's sockets and its console's text are."""

    folder: Path

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    @property
    def qmp(self) -> Path:
        return self.folder / "qmp"

    @property
    def console(self) -> Path:
        return self.folder / "console"

    @property
    def qemu_log(self) -> Path:
        return self.folder / "qemu.log"


def guest_missing_reason() -> str | None:
    """Why guests cannot be run here (the sentence a test skips with), or None."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return f"there is no test guest for the architecture {platform.machine()}"
    return missing_reason(machine.program) or image_missing_reason()


def this_machine() -> Machine:
    """The machine for the architecture this runs on; `KeyError` when there is none."""
    return _MACHINES[platform.machine()]


def qemu_arguments(
    machine: Machine,
    image: GuestImage,
    files: GuestFiles,
    devices: Sequence[VhostUserDevice],
    *,
    cpus: int,
    memory_mib: int,
    hotplug_ports: int,
) -> list[str]:
    """The arguments for QEMU; the devices are plugged in in their order."""
    arguments = [
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", f"{machine.machine},memory-backend=mem"),
        *("-accel", "tcg,thread=multi", "-cpu", machine.cpu),
        *("-smp", str(cpus), "-m", str(memory_mib)),
        *("-object", f"memory-backend-memfd,id=mem,size={memory_mib}M,share=on"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initramfs)),
        *("-append", f"console={machine.console} {_KERNEL_OPTIONS}"),
        *("-chardev", f"file,id=console,path={escaped(str(files.console))}"),
        *("-serial", "chardev:console"),
        *("-chardev", _listener("agent", files.agent)),
        *("-device", "virtio-serial-pci"),
        *("-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
        *("-chardev", _listener("qmp", files.qmp), "-mon", "chardev=qmp,mode=control"),
    ]
    for port in range(hotplug_ports):
        arguments += ["-device", f"pcie-root-port,id=port{port},chassis={port + 1}"]
    for device in devices:
        arguments += ["-chardev", device.chardev_argument()]
        arguments += ["-device", json.dumps(device.properties())]
    return arguments


def _listener(name: str, path: Path) -> str:
    return f"socket,id={name},path={escaped(str(path))},server=on,wait=off"
