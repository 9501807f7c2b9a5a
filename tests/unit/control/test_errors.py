"""Every line that is refused, and the sentence it is refused with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.control.errors import OptionError
from vringd.control.schema import ServeOptions

N = "--blockdev null-co,node-name=n0"
E = "--export vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path=/run/e0.sock"
E1 = "--export vhost-user-blk,id=e1,node-name=n0,addr.type=unix,addr.path=/run/e1.sock"
S = "--export vhost-user-scsi,id=s0,addr.type=unix,addr.path=/run/s0.sock"
S1 = "--export vhost-user-scsi,id=s1,addr.type=unix,addr.path=/run/s1.sock"
D0 = "devices.0.node-name=n0"
SIZE = "(suffixes K, M, G, T: powers of 1024)"
SERVED = "file, host_device, null-co, null-aio"

CASES = [
    # How it is written
    (
        "--object iothread,id=t0,cpu-affinity=0-3,8",
        "--object iothread,id=t0,cpu-affinity=0-3,8: '8' has no value: write 8=VALUE"
        " (a comma inside a value is written twice: ',,')",
    ),
    (
        "--export {",
        "--export {: invalid JSON: Expecting property name enclosed in double quotes:"
        " line 1 column 2 (char 1)",
    ),
    # IOThreads
    ("--object id=t0", "--object id=t0: qom-type is missing; vringd has iothread"),
    (
        "--object throttle-group,id=g0",
        "--object throttle-group,id=g0: unknown object type 'throttle-group': vringd has iothread",
    ),
    ("--object iothread", "--object qom-type=iothread: id is missing"),
    (
        "--object iothread,id=0t",
        "--object iothread,id=0t: id=0t: expected a letter, then letters, digits, '-', '.' or '_'",
    ),
    (
        "--object iothread,id=t0,poll-maxns=1",
        "--object iothread,id=t0: unknown option 'poll-maxns'; did you mean 'poll-max-ns'?",
    ),
    (
        "--object iothread,id=t0,frobnicate=1",
        "--object iothread,id=t0: unknown option 'frobnicate'; known: aio-max-batch, cpu-affinity,"
        " id, poll-grow, poll-max-ns, poll-shrink, thread-pool-max, thread-pool-min",
    ),
    (
        "--object iothread,id=t0,poll-max-ns=-1",
        "--object iothread,id=t0: poll-max-ns=-1: expected a whole number, 0 or more",
    ),
    (
        "--object iothread,id=t0,cpu-affinity=3-1",
        "--object iothread,id=t0: cpu-affinity=3-1: expected CPU numbers such as 0-3,8",
    ),
    (
        "--object iothread,id=t0 --object iothread,id=t0",
        "--object iothread,id=t0: the id is already used by --object iothread,id=t0;"
        " give each its own id",
    ),
    # Block nodes
    (
        "--blockdev qcow2,node-name=n0",
        f"--blockdev node-name=n0: unknown driver 'qcow2': vringd serves {SERVED}",
    ),
    (
        """--blockdev '{"driver": 1, "node-name": "n0"}'""",
        f"--blockdev node-name=n0: unknown driver '1': vringd serves {SERVED}",
    ),
    (
        "--blockdev node-name=n0",
        f"--blockdev node-name=n0: driver is missing; vringd serves {SERVED}",
    ),
    ("--blockdev null-co", "--blockdev driver=null-co: node-name is missing"),
    (
        f"--blockdev null-co,node-name={'n' * 32}",
        f"--blockdev node-name={'n' * 32}: node-name={'n' * 32}: expected at most 31 characters,"
        " this has 32",
    ),
    (f"{N},size=big", f"--blockdev node-name=n0: size=big: expected a size of 512 or more {SIZE}"),
    (
        f"{N},size=1000",
        "--blockdev node-name=n0: size=1000 is not a multiple of the block size, 512 bytes",
    ),
    (f"{N},read-only=1", "--blockdev node-name=n0: read-only=1: expected on or off"),
    (
        f"{N},cache=none",
        "--blockdev node-name=n0: cache=none: expected a group of options: .direct, .no-flush",
    ),
    (
        f"{N},cache.direkt=on",
        "--blockdev node-name=n0: cache: unknown option 'direkt'; did you mean 'direct'?",
    ),
    (
        f"{N},cache.direct=x",
        "--blockdev node-name=n0: cache.direct=x: expected on or off",
    ),
    (f"{N},read-only.x=on", "--blockdev node-name=n0: read-only={…}: expected on or off"),
    (f"{N},discard=on", "--blockdev node-name=n0: discard=on: expected ignore or unmap"),
    (
        f"{N},detect-zeroes=unmap",
        "--blockdev node-name=n0: detect-zeroes=unmap needs discard=unmap",
    ),
    (f"{N},force-share=on", "--blockdev node-name=n0: force-share=on needs read-only=on"),
    ("--blockdev file,node-name=d", "--blockdev node-name=d: filename is missing"),
    (
        "--blockdev file,node-name=d,filename=",
        "--blockdev node-name=d: filename=: expected a text that is not empty",
    ),
    (
        "--blockdev file,node-name=d,filename=f,aio=posix",
        "--blockdev node-name=d: aio=posix: expected threads, native or io_uring",
    ),
    (
        "--blockdev file,node-name=d,filename=f,aio=native",
        "--blockdev node-name=d: aio=native needs cache.direct=on (or use aio=io_uring or threads)",
    ),
    (
        f"{N} {N}",
        "--blockdev node-name=n0: the name is already used by --blockdev node-name=n0;"
        " give each node its own node-name",
    ),
    # Raw nodes
    ("--blockdev raw,node-name=r", "--blockdev node-name=r: file is missing"),
    (
        "--blockdev raw,node-name=r,file=x",
        "--blockdev node-name=r: file=x: there is no such node;"
        " define it with --blockdev driver=…,node-name=x",
    ),
    (
        "--blockdev raw,node-name=r,file.driver=qcow2",
        f"--blockdev node-name=r: in file: unknown driver 'qcow2': vringd serves {SERVED}",
    ),
    (
        "--blockdev raw,node-name=r,file.driver=file,file.filename=f,file.locking=maybe",
        "--blockdev node-name=r: in file: locking=maybe: expected auto, on or off",
    ),
    (
        f"{N} --blockdev raw,node-name=r,file=n0 --blockdev raw,node-name=s,file=n0",
        "--blockdev node-name=s: file=n0: the node is already used by node 'r'",
    ),
    (
        "--blockdev raw,node-name=r,file=s --blockdev raw,node-name=s,file=r",
        "--blockdev node-name=s: file: the node stands on itself",
    ),
    (
        "--blockdev raw,node-name=r,file=r",
        "--blockdev node-name=r: file: the node stands on itself",
    ),
    (
        f"{N} --blockdev raw,node-name=r,file=n0 --blockdev raw,node-name=s,file=r {E}",
        "--export id=e0: node 'n0' is part of node 's'; export that with node-name=s",
    ),
    # Exports
    (
        f"{N} --export id=e0",
        "--export id=e0: type is missing; vringd has vhost-user-blk and vhost-user-scsi",
    ),
    (
        f"{N} --export nbd,id=e0",
        "--export id=e0: unknown export type 'nbd': vringd has vhost-user-blk and vhost-user-scsi",
    ),
    (
        f"{N} --export vhost-user-blk,node-name=n0,addr.type=unix,addr.path=/s",
        "--export type=vhost-user-blk: id is missing",
    ),
    (f"{N} --export vhost-user-blk,id=e0,node-name=n0", "--export id=e0: addr is missing"),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr=/run/e0.sock",
        "--export id=e0: addr=/run/e0.sock: expected a group of options with .type=unix or fd",
    ),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr.path=/run/e0.sock",
        "--export id=e0: addr.type is missing; expected unix or fd",
    ),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr.type=inet,addr.port=1",
        "--export id=e0: addr.type=inet: expected unix or fd",
    ),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr.type=unix",
        "--export id=e0: addr.path is missing",
    ),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr.type=fd,addr.str=sock",
        "--export id=e0: addr.str=sock: expected a whole number from 0 to 2147483647",
    ),
    (
        f"{N} --export vhost-user-blk,id=e0,node-name=n0,addr.type=unix,addr.path=/{'x' * 107}",
        f"--export id=e0: addr.path=/{'x' * 107}: the path has 108 bytes, a socket's may have 107",
    ),
    (
        f"{N} {E},addr.tight=off,addr.abstract=on",
        "--export id=e0: addr.abstract=on: not supported; expected off",
    ),
    (
        f"{N} {E},num-queue=4",
        "--export id=e0: unknown option 'num-queue'; did you mean 'num-queues'?",
    ),
    (
        f"{N} {E},num-queues=0",
        "--export id=e0: num-queues=0: expected a whole number from 1 to 256",
    ),
    (
        f"{N} {E},queue-size=100",
        "--export id=e0: queue-size=100: expected a power of two, such as 64",
    ),
    (
        f"{N} {E},queue-size=2048",
        "--export id=e0: queue-size=2048: expected a whole number from 2 to 1024",
    ),
    (
        f"{N} {E},logical-block-size=1000",
        "--export id=e0: logical-block-size=1000: expected a power of two, such as 512",
    ),
    (
        f"{N} {E},logical-block-size=256",
        f"--export id=e0: logical-block-size=256: expected a size from 512 to 2M {SIZE}",
    ),
    (
        f"{N} {E},logical-block-size=4K,physical-block-size=512",
        "--export id=e0: physical-block-size=512 is less than logical-block-size=4096",
    ),
    (
        f"{N} {E},opt-io-size=1000",
        "--export id=e0: opt-io-size=1000 is not a multiple of logical-block-size=512",
    ),
    (
        f"{N} {E},queue-size=64,seg-max=63",
        "--export id=e0: seg-max=63 does not fit queue-size=64; it may be 62 at most",
    ),
    (
        f"{N} {E},serial=123456789012345678901",
        "--export id=e0: serial=123456789012345678901: expected at most 20 bytes, this has 21",
    ),
    (
        f"{N} {E},iothread=t9",
        "--export id=e0: iothread 't9' does not exist; define it with --object iothread,id=t9",
    ),
    (
        f"{N} {E},iothread-vq-mapping=t0",
        "--export id=e0: iothread-vq-mapping=t0: expected a list: .0=…, .1=…",
    ),
    (
        f"{N} {E},iothread-vq-mapping.0.vqs.0=0",
        "--export id=e0: iothread-vq-mapping.0.iothread is missing",
    ),
    (
        f"{N} {E},iothread-vq-mapping.0.iothread=t0,iothread-vq-mapping.0.vqs.0=x",
        "--export id=e0: iothread-vq-mapping.0.vqs.0=x: expected a whole number from 0 to 255",
    ),
    (
        f"{N} {E},iothread-vq-mapping.0.iothread=t0,iothread-vq-mapping.0.vq.0=1",
        "--export id=e0: iothread-vq-mapping.0: unknown option 'vq'; did you mean 'vqs'?",
    ),
    (
        f"{N} {E},iothreads=auto",
        "--export id=e0: iothreads=auto: automatic mapping is not available;"
        " give a number of threads or per-vq",
    ),
    (
        f"{N} {E},iothreads=all",
        "--export id=e0: iothreads=all: expected a number from 1 to 256, or per-vq",
    ),
    (
        f"{N} {E},iothreads=0",
        "--export id=e0: iothreads=0: expected a number from 1 to 256, or per-vq",
    ),
    (
        E,
        "--export id=e0: node 'n0' does not exist; define it with --blockdev driver=…,node-name=n0",
    ),
    (
        f"{N},read-only=on {E},writable=on",
        "--export id=e0: writable=on, but node 'n0' is read-only; drop one of the two",
    ),
    (
        f"{N} {E},writable=on {E1},writable=on",
        "--export id=e1: writable=on, but --export id=e0 writes to node 'n0' already;"
        " only one export may",
    ),
    (
        f"{N} {E} {E1.replace('id=e1', 'id=e0')}",
        "--export id=e0: the id is already used by --export id=e0; give each its own id",
    ),
    (
        f"{N} {E} {E1.replace('/run/e1', '/run//./e0')}",
        "--export id=e1: addr.path=/run//./e0.sock is already used by --export id=e0;"
        " give each export its own socket",
    ),
    (
        f"{N} --export vhost-user-blk,id=a,node-name=n0,addr.type=fd,addr.str=5"
        " --export vhost-user-blk,id=b,node-name=n0,addr.type=fd,addr.str=0x5",
        "--export id=b: addr.str=5 is already used by --export id=a;"
        " give each export its own socket",
    ),
    # SCSI
    (f"{N} {S}", "--export id=s0: devices is missing"),
    (
        f"{N} {S},devices.0.target=1",
        "--export id=s0: devices.0: node-name is missing; only with removable=on or cdrom=on may a"
        " device have no medium",
    ),
    (
        f"{N} {S},{D0},devices.0.target=256",
        "--export id=s0: devices.0.target=256: expected a whole number from 0 to 255",
    ),
    (
        f"{N} {S},{D0},devices.0.lun=16384",
        "--export id=s0: devices.0.lun=16384: expected a whole number from 0 to 16383",
    ),
    (
        f"{N} {S},{D0},devices.0.serail=x",
        "--export id=s0: devices.0: unknown option 'serail'; did you mean 'serial'?",
    ),
    (
        f"{N} {S},{D0},devices.0.vendor=123456789",
        "--export id=s0: devices.0.vendor=123456789: expected at most 8 bytes, this has 9",
    ),
    (
        f"{N} {S},{D0},devices.1.cdrom=on,devices.1.target=0",
        "--export id=s0: devices.1: target=0,lun=0 is devices.0 already; choose another",
    ),
    (
        f"{N} {S},{D0},devices.0.share-rw=on,devices.1.node-name=n0,devices.1.target=0,"
        "devices.1.lun=1,devices.1.share-rw=on",
        "--export id=s0: devices.1: devices.0 shows node 'n0' at target 0 already;"
        " choose another target",
    ),
    (
        f"{N} {S},devices.0.node-name=n1",
        "--export id=s0: devices.0: node 'n1' does not exist;"
        " define it with --blockdev driver=…,node-name=n1",
    ),
    (
        f"{N} {S},{D0} {S1},{D0}",
        "--export id=s1: devices.0: --export id=s0: devices.0 shows node 'n0' already; two devices"
        " may with share-rw=on for both",
    ),
    (
        f"{N} {S},{D0},devices.0.share-rw=on {S1},{D0},devices.0.share-rw=on,devices.0.serial=x",
        "--export id=s1: devices.0: --export id=s0: devices.0 shows node 'n0' with other options;"
        " it is one unit, so give both the same (but for target and lun)",
    ),
    (
        f"{N} {E},writable=on {S},{D0},devices.0.writable=on",
        "--export id=s0: devices.0: writable=on, but --export id=e0 writes to node 'n0' already;"
        " only one export may",
    ),
    (
        f"{N},read-only=on {S},{D0},devices.0.writable=on",
        "--export id=s0: devices.0: writable=on, but node 'n0' is read-only; drop one of the two",
    ),
    (
        f"{N} {S},{D0},devices.0.cdrom=on,devices.0.writable=on",
        "--export id=s0: devices.0: writable=on, but a CD-ROM is read-only; drop one of the two",
    ),
    (
        f"{N} {S},{D0},devices.0.logical-block-size=4096,devices.0.physical-block-size=512",
        "--export id=s0: devices.0: physical-block-size=512 is less than logical-block-size=4096",
    ),
    (
        f"{N} {S},{D0},initiator=a\\ b",
        "--export id=s0: initiator=a b: expected ASCII characters, no blanks",
    ),
    (
        f"{N} {S},{D0},num-queues=255",
        "--export id=s0: num-queues=255: expected a whole number from 1 to 254",
    ),
    (
        f"{N} {S},{D0},num-queues=70,iothreads=65",
        "--export id=s0: 65 IOThreads for one vhost-user-scsi export; it may have 64 at most",
    ),
    (
        f"{N} --object iothread,id=t0 {S},{D0},num-queues=2,iothread-vq-mapping.0.iothread=t0,"
        "iothread-vq-mapping.0.vqs.0=0,iothread-vq-mapping.0.vqs.1=2",
        "--export id=s0: iothread-vq-mapping: queue 2 of iothread 't0' does not exist;"
        " with num-queues=2 the last one is 1",
    ),
    (
        f"{N} {S},{D0},queue-size=64,seg-max=100",
        "--export id=s0: seg-max=100 does not fit queue-size=64; it may be 62 at most",
    ),
]


@pytest.mark.parametrize(("line", "message"), CASES)
def test_refused_with_a_sentence(
    build_line: Callable[[str], ServeOptions], line: str, message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        build_line(line)
    assert str(caught.value) == message
