from vringd.core.channel import Channel

class ServiceSlots:
    def __init__(self, count: int) -> None: ...

class NullChannel(Channel):
    def __init__(
        self,
        *,
        latency_ns: int,
        cpu_ns: int,
        read_zeroes: bool,
        slots: ServiceSlots | None = None,
    ) -> None: ...
