"""What machine this is: told with every result, since figures mean little without it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Host:
    """cpus: those that this process may use; threads_per_core: 0 if unknown; virtual: the
    hypervisor's or DMI product's name of a virtual machine, empty on bare metal or if unknown;
    mitigations: the kernel's word for each vulnerability that concerns this CPU."""

    model: str
    architecture: str
    cpus: tuple[int, ...]
    present: int
    threads_per_core: int
    memory: int
    kernel: str
    virtual: str
    governor: str
    mitigations: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look_at_host() -> Host:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    info = _read("/proc/cpuinfo")
    sibling = _read(f"/sys/devices/system/cpu/cpu{cpus[0]}/topology/thread_siblings_list")
    return Host(
        model=_field(info, "model name") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        cpus=cpus,
        present=os.cpu_count() or len(cpus),
        threads_per_core=_count(sibling),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        virtual=_virtual(info),
        governor=_read(f"/sys/devices/system/cpu/cpu{cpus[0]}/cpufreq/scaling_governor"),
        mitigations=_mitigations(),
    )


def describe_host(host: Host | None = None) -> str:
    """One line."""
    host = host or look_at_host()
    virtual = f", a virtual machine ({host.virtual})" if host.virtual else ""
    return f"Linux {host.kernel}, {len(host.cpus)} x {host.model}{virtual}"


def describe_mitigations(host: Host) -> str:
    """One line: which are in force, and what is open."""
    on = [name for name, word in host.mitigations.items() if word.startswith("Mitigation")]
    bare = [name for name, word in host.mitigations.items() if word.startswith("Vulnerable")]
    parts = [f"in force: {', '.join(on)}"] if on else []
    if bare:
        parts.append(f"not mitigated: {', '.join(bare)}")
    return "; ".join(parts) or "none needed, or not told by this kernel"


def _mitigations() -> dict[str, str]:
    folder = Path("/sys/devices/system/cpu/vulnerabilities")
    try:
        found = {path.name: _read(str(path)) for path in sorted(folder.iterdir())}
    except OSError:
        return {}
    return {name: word for name, word in found.items() if word and word != "Not affected"}


def _virtual(cpuinfo: str) -> str:
    if " hypervisor" not in _field(cpuinfo, "flags"):
        return ""
    return (
        _read("/sys/class/dmi/id/product_name")
        or _read("/sys/hypervisor/type")
        or "product not told"
    )


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _count(ranges: str) -> int:
    """How many numbers a list such as 0,4 or 0-1 has."""
    count = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
