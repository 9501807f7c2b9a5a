from vringd.core.channel import Channel

class PoolFileChannel(Channel):
    def __init__(
        self,
        owner: object,
        fd: int,
        *,
        memory_alignment: int = 1,
        ignore_flush: bool = False,
        discard: bool = False,
        detect_zeroes: int = 0,
        min_workers: int = 0,
        max_workers: int = 64,
    ) -> None: ...
