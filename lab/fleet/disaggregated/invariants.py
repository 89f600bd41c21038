"""What must hold in every world, numbered; each is checked on its own evidence.

1  one terminal       every request has exactly one end, and nothing after it
2  blocks             free + used + cached + quarantined = total, references equal the tables
3  no leak            when all is over no block is used, kept or in quarantine, no transfer is open
4  writes             a write lands in a block that is in quarantine for its epoch, or in no memory
5  verified           blocks are admitted after they were verified, and have the prompt's contents
6  tokens             outputs are the sequence's true tokens, in order, without a gap
7  parts              the parts of a transfer's account sum to its time with 0 ns off, none but the
                      wire is negative, and the wire is not negative either: clocks run alike here
8  one epoch          a transfer is begun at most once, and writes nothing once it was said that it
                      does not
9  the end            a world comes to its end
10 staging            what is on its way from an engine is no more than may be, or one block
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lab.simulation.evidence import InvariantViolated, require
from lab.simulation.sim_executor import WrongContents
from service.engine.plan import Emission
from service.fleet.transfer.messages import PeerId
from telemetry.facts.engine_records import SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted, KvVerified
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.requests.kv_accounts import KvAccount, KvAccounts, KvPart

if TYPE_CHECKING:
    from lab.fleet.disaggregated.node import SimNode


class Invariants:
    """Watches one world. Raises InvariantViolated at the first thing that is wrong."""

    def __init__(self) -> None:
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.ends: dict[int, EndReason] = {}
        self.accounts: list[KvAccount] = []
        self.landed_blocks = 0
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._verified: set[int] = set()
        self._folds: dict[PeerId, KvAccounts] = defaultdict(KvAccounts)
        self._begun: set[tuple[PeerId, int]] = set()

    def submitted(self, seq_id: int, prompt: tuple[int, ...]) -> None:
        self.prompts[seq_id] = prompt

    def emitted(self, node: SimNode, emission: Emission) -> None:
        """What a client is sent."""
        seq_id = emission.seq_id
        require(1, seq_id not in self.ends, f"{seq_id}: news after its end")
        if emission.sample is not None:
            tokens = self._tokens[seq_id]
            true = node.executor.token(seq_id, len(tokens))
            found = emission.sample.token_id
            require(6, found == true, f"{seq_id}: output {len(tokens)} is {found}, not {true}")
            tokens.append(found)
        if emission.end is not None:
            self.ended(seq_id, emission.end)

    def ended(self, seq_id: int, reason: EndReason) -> None:
        require(1, seq_id not in self.ends, f"{seq_id} has ended twice")
        self.ends[seq_id] = reason

    def broken(self, peer: PeerId, error: Exception) -> InvariantViolated:
        """What an engine itself finds wrong in a step."""
        return InvariantViolated(5 if isinstance(error, WrongContents) else 2, f"{peer}: {error}")

    def landed(self, node: SimNode, epoch: int, block: int) -> None:
        owner = node.scheduler.pool.epoch_of(block)
        require(4, owner == epoch, f"a write of {epoch} lands in block {block} of {owner}")
        self.landed_blocks += 1

    def recorded(self, node: SimNode, fact: Fact) -> None:
        match fact:
            case KvVerified() if not fact.corrupt_blocks:
                self._verified.add(fact.epoch)
            case KvAdmitted():
                require(5, fact.epoch in self._verified, f"{fact.epoch} is not verified")
                self._contents(node, fact)
            case SequenceQueued() if fact.sends_kv:
                key = (node.peer, fact.sends_kv)
                require(8, key not in self._begun, f"{fact.sends_kv} is begun again")
                self._begun.add(key)
            case _:
                pass
        account = self._folds[node.peer].take(fact)
        if account is not None:
            self._parts(account)

    def fenced(self, epoch: int, writes: int) -> None:
        """A side says that it writes nothing any more, while `writes` of it are on their way."""
        require(8, not writes, f"{writes} writes of {epoch} are on their way after its fence")

    def staged(self, most_bytes: int, found_bytes: int, blocks: int) -> None:
        """So much is on its way from an engine."""
        said = f"{found_bytes} bytes in {blocks} blocks are on their way, not {most_bytes}"
        require(10, found_bytes <= most_bytes or blocks == 1, said)

    def after_iteration(self, node: SimNode) -> None:
        try:
            node.scheduler.check()
        except AssertionError as error:
            raise InvariantViolated(2, str(error)) from error

    def at_end(self, nodes: list[SimNode]) -> None:
        for seq_id in self.prompts:
            require(1, seq_id in self.ends, f"{seq_id} has no end")
        for node in nodes:
            pool = node.scheduler.pool
            left = (pool.used, pool.quarantined, len(node.scheduler.table.held))
            require(3, left == (0, 0, 0), f"{node.peer}: used, quarantined, kept are {left}")
            require(3, not node.states, f"{node.peer}: {node.states} are open")

    def _contents(self, node: SimNode, fact: KvAdmitted) -> None:
        """The blocks of a sequence hold its prompt, from the first position to the last."""
        request = node.scheduler.table.live.get(fact.seq_id)
        if request is None or not request.blocks:
            return
        size, prompt = node.executor.block_tokens, self.prompts[fact.seq_id]
        for begin in range(0, len(prompt), size):
            cells = node.executor.read_block(request.blocks[begin // size])
            held = [None if cell is None else cell.token for cell in cells]
            for place, token in enumerate(prompt[begin : begin + size], begin):
                if held[place - begin] != token:
                    said = f"{fact.seq_id}: position {place} holds {cells[place - begin]}"
                    require(5, False, f"{said}, not {token}")

    def _parts(self, account: KvAccount) -> None:
        total_ns = sum(account.parts.values())
        off_ns = total_ns - account.elapsed_ns
        require(7, off_ns == 0, f"parts of {account.seq_id} are {off_ns} ns off")
        negative = [part.value for part, ns in account.parts.items() if ns < 0]
        require(7, not negative, f"{account.seq_id}: {negative} of {account.parts}")
        if account.fault is None and KvPart.SEAL in account.parts:
            self.accounts.append(account)
