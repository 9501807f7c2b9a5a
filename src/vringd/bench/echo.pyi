from collections.abc import Iterable

from vringd.core.virtqueue import Virtqueue

class EchoServer:
    def __init__(
        self, queues: Iterable[Virtqueue], cpus: Iterable[int] = (), *, scsi: bool = False
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
