from vringd.core.channel import Channel

class UringFileChannel(Channel):
    def __init__(
        self,
        owner: object,
        fd: int,
        *,
        memory_alignment: int = 1,
        ignore_flush: bool = False,
        discard: bool = False,
        detect_zeroes: int = 0,
        registered_buffers: bool = False,
    ) -> None: ...
