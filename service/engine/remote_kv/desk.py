"""Both directions of KV between engines, as the scheduler sees them."""

from __future__ import annotations

from service.engine.admission import Limits
from service.engine.inbox import ReleaseKv
from service.engine.kv.prefix import PrefixCache
from service.engine.remote_kv.received import ReceivedKv
from service.engine.remote_kv.sent import SentKv
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.sequence_table import SequenceTable


class RemoteKv:
    """`received` decode here, `sent` are computed here for another engine."""

    def __init__(
        self, limits: Limits, table: SequenceTable, prefix: PrefixCache, log: FactLog
    ) -> None:
        self.received = ReceivedKv(limits, table, prefix, log)
        self.sent = SentKv(table, prefix, log)

    def release(self, command: ReleaseKv) -> None:
        """Free what was reserved or kept for a transfer; nothing happens if there is nothing."""
        if not self.received.release(command.epoch):
            self.sent.release(command.epoch)
