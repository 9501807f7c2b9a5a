from vringd.core.channel import Channel

class ServiceSlots:
    def __new__(cls, count: int) -> ServiceSlots: ...

class NullChannel(Channel):
    def __init__(
        self,
        *,
        latency_ns: int,
        cpu_ns: int,
        read_zeroes: bool,
        slots: ServiceSlots | None = None,
    ) -> None: ...
