"""fio's options, as far as they make sense for a device without a file: names to JobSpec."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from vringd.bench import values
from vringd.bench.errors import JobOptionError
from vringd.bench.spec import DIRECTIONS, READ, TRIM, WRITE, BlockSizes, JobSpec

_IGNORED_WORDS: Final = """
    ioengine direct filename directory thread fadvise_hint invalidate buffered fallocate
    create_on_open create_serialize fsync_on_close overwrite refill_buffers end_fsync ioscheduler
    hipri fixedbufs registerfiles sqthread_poll nonvectored disable_lat disable_clat disable_slat
    disable_bw_measurement clat_percentiles lat_percentiles slat_percentiles percentile_list
    userspace_reap libblkio_driver libblkio_path libblkio_wait_mode write_bw_log write_lat_log
    write_iops_log log_avg_msec eta_newline status_interval exitall loops mem iomem unlink
    allow_mounted_write kb_base unit_base description
"""
IGNORED: Final = frozenset(_IGNORED_WORDS.split())
"""Accepted, so that job files written for fio run; they change nothing here."""

_MODES: Final = {
    "read": (READ,),
    "write": (WRITE,),
    "trim": (TRIM,),
    "rw": (READ, WRITE),
    "readwrite": (READ, WRITE),
}

_ALIASES: Final = {
    "readwrite": "rw",
    "blocksize": "bs",
    "blocksize_range": "bsrange",
    "iodepth_batch": "iodepth_batch_submit",
    "iodepth_batch_complete": "iodepth_batch_complete_min",
    "timeout": "runtime",
    "io_size": "size",
}


def _mode(text: str) -> dict[str, Any]:
    name, colon, extra = text.partition(":")
    random = name.startswith("rand")
    directions = _MODES.get(name.removeprefix("rand"))
    if directions is None:
        raise ValueError("not one of read, write, trim, rw, randread, randwrite, randtrim, randrw")
    changes: dict[str, Any] = {"directions": frozenset(directions), "random": random}
    if colon:
        changes["run_length" if random else "skip"] = (
            values.count(extra) if random else values.size(extra)
        )
    return changes


def _sizes(parse: Callable[[str], BlockSizes]) -> Callable[[str], dict[str, Any]]:
    """A value for each of reads, writes and trims; what is missing is as the one before."""

    def read(text: str) -> dict[str, Any]:
        parts = text.split(",")
        if len(parts) > len(DIRECTIONS):
            raise ValueError("more than three values: for reads, writes and trims")
        found: dict[str, BlockSizes] = {}
        last = BlockSizes()
        for index, direction in enumerate(DIRECTIONS):
            if index < len(parts) and parts[index]:
                last = parse(parts[index])
            found[direction] = last
        return {"sizes": found}

    return read


def _distribution(text: str) -> dict[str, Any]:
    kind, _, theta = text.partition(":")
    if kind == "random":
        return {"zipf_theta": 0.0}
    if kind != "zipf":
        raise ValueError("not random or zipf:THETA")
    try:
        value = float(theta or "1.1")
    except ValueError:
        value = 0.0
    if not 0 < value < 10 or value == 1.0:
        raise ValueError("zipf's theta must lie between 0 and 10 and not be 1")
    return {"zipf_theta": value}


def _verify(text: str) -> dict[str, Any]:
    if text not in ("crc32c", "crc32c-intel", "0", "none"):
        raise ValueError("only crc32c is there")
    return {"verify": text.startswith("crc32c")}


def _policy(text: str) -> dict[str, Any]:
    if text not in ("shared", "split"):
        raise ValueError("not shared or split")
    return {"cpus_split": text == "split"}


def _one(field: str, parse: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    return lambda text: {field: parse(text)}


_OPTIONS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "rw": _mode,
    "bs": _sizes(values.blocks),
    "bsrange": _sizes(values.block_range),
    "bssplit": _sizes(values.block_splits),
    "iodepth": _one("iodepth", values.count),
    "iodepth_batch_submit": _one("batch_submit", values.count),
    "iodepth_batch_complete_min": _one("batch_complete_min", values.size),
    "iodepth_batch_complete_max": _one("batch_complete_max", values.count),
    "numjobs": _one("numjobs", values.count),
    "rwmixread": _one("read_percent", values.percent),
    "rwmixwrite": _one("read_percent", lambda text: 100 - values.percent(text)),
    "runtime": _one("runtime", values.seconds),
    "ramp_time": _one("ramp_time", values.seconds),
    "time_based": _one("time_based", values.flag),
    "size": _one("size", values.size),
    "offset": _one("offset", values.size),
    "offset_increment": _one("offset_increment", values.size),
    "number_ios": _one("number_ios", values.count),
    "rate_iops": _one("rate_iops", values.count),
    "verify": _verify,
    "do_verify": _one("do_verify", values.flag),
    "group_reporting": _one("group_reporting", values.flag),
    "new_group": _one("new_group", values.flag),
    "stonewall": _one("stonewall", values.flag),
    "wait_for_previous": _one("stonewall", values.flag),
    "cpus_allowed": _one("cpus_allowed", values.cpus),
    "cpus_allowed_policy": _policy,
    "gtod_reduce": _one("gtod_reduce", values.flag),
    "thinktime": _one("thinktime_us", lambda text: round(values.seconds(text, 1e-6) * 1e6)),
    "thinktime_blocks": _one("thinktime_blocks", values.count),
    "random_distribution": _distribution,
    "norandommap": _one("norandommap", values.flag),
    "randseed": _one("randseed", values.size),
}

NAMES: Final = frozenset({*_OPTIONS, *_ALIASES})


def make_job(name: str, options: Mapping[str, str]) -> tuple[JobSpec, list[str]]:
    """A job from its options, the global ones first, and those that were ignored.

    Raises JobOptionError for an unknown option, naming the nearest known one, and for values.
    """
    spec = JobSpec(name)
    ignored = []
    for key, text in options.items():
        known = _ALIASES.get(key, key)
        if known in IGNORED:
            ignored.append(key)
            continue
        reader = _OPTIONS.get(known)
        if reader is None:
            raise JobOptionError(f"job {name}: unknown option {key!r}{_nearest(key)}")
        try:
            spec = replace(spec, **reader(text))
        except ValueError as error:
            raise JobOptionError(f"job {name}: {key}={text}: {error}") from None
    _check(spec)
    return replace(spec, options=dict(options)), ignored


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, NAMES, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else "; see docs/bench.md for those that exist"


def _check(spec: JobSpec) -> None:
    def refuse(text: str) -> None:
        raise JobOptionError(f"job {spec.name}: {text}")

    if spec.iodepth > 32768:
        refuse(f"iodepth={spec.iodepth}: a virtqueue has 32768 entries at most")
    if spec.batch_submit > spec.iodepth:
        refuse(f"iodepth_batch_submit={spec.batch_submit} is more than iodepth={spec.iodepth}")
    if spec.batch_complete_min > spec.iodepth:
        refuse(
            f"iodepth_batch_complete_min={spec.batch_complete_min} is more than"
            f" iodepth={spec.iodepth}"
        )
    if spec.time_based and not spec.runtime:
        refuse("time_based needs runtime")
    if spec.verify and TRIM in spec.directions:
        refuse("verify and trim exclude each other")
