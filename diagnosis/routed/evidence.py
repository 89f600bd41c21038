"""What is measured of a fleet: every quantity that a finding may show."""

from __future__ import annotations

from diagnosis.evidence import Quantity, Unit


class Routed(Quantity):
    """What the gateway measures of the window that is judged. *usual* is of the time before."""

    # replica_slow
    STEP_FACTOR = "step_factor", Unit.TIMES, "length of its steps over the others' of equal size"
    USUAL_STEP_FACTOR = "usual_step_factor", Unit.TIMES, "the same, usually"
    STEPS = "steps", Unit.STEPS, "of the engine, whose length is known"
    STEP_EXCESS = "step_excess", Unit.MS, "requests' time in its steps, beyond the others' pace"
    # waits
    WAIT_EACH = "wait_each", Unit.MS, "first tokens at the culprit, less their own prompts' work"
    OTHERS_WAIT_EACH = "others_wait_each", Unit.MS, "the same, at the other engines"
    USUAL_WAIT_EACH = "usual_wait_each", Unit.MS, "the same, usually, at any"
    LATE_FIRSTS = "late_firsts", Unit.REQUESTS, "that waited longer than usual"
    # signals_stale
    SIGNAL_AGE = "signal_age", Unit.SECONDS, "of the oldest engine's load, on average"
    USUAL_SIGNAL_AGE = "usual_signal_age", Unit.SECONDS, "the same, usually"
    ENGINES_STALE = "engines_stale", Unit.ENGINES, "whose load is that old"
    # affinity_lost
    AVOIDABLE_SHARE = "avoidable_share", Unit.SHARE, "of its prompt tokens: computed again"
    USUAL_AVOIDABLE_SHARE = "usual_avoidable_share", Unit.SHARE, "the same, usually"
    AVOIDABLE_TOKENS = "avoidable_tokens", Unit.TOKENS, "computed again, though it had them before"
    FLEET_HIT_SHARE = "fleet_hit_share", Unit.SHARE, "of all prompt tokens, cached where they went"
    RESTARTS = "restarts", Unit.ENGINES, "joined again, without what they held"
    # hot_prefix
    PREFIX_SHARE = "prefix_share", Unit.SHARE, "of the requests, below the prefix most asked for"
    USUAL_PREFIX_SHARE = "usual_prefix_share", Unit.SHARE, "the same prefix, usually"
    PREFIX_AT_ONE = "prefix_at_one", Unit.SHARE, "of these, at one engine"
    # router_herding
    WITHIN_AGE = "within_age", Unit.SHARE, "chance that two requests between reports go to one"
    OVER_WINDOW = "over_window", Unit.SHARE, "chance that any two requests go to one engine"
    ARRIVALS = "arrivals", Unit.REQUESTS, "requests of this gateway, and sequences of others"
    OTHERS_ARRIVALS = "others_arrivals", Unit.SEQUENCES, "of other gateways, among the arrivals"
    # clock_unbounded
    CLOCK_STEPS = "clock_steps", Unit.TIMES, "its clock was set, or stood still"
    UNPLACED_SHARE = "unplaced_share", Unit.SHARE, "of its sequences, that cannot be placed"
    UNPLACED = "unplaced", Unit.SEQUENCES, "that cannot be placed in this clock"


class Transferred(Quantity):
    """What the engine that decodes measures of KV that comes from other engines. *usual* is of the
    time before."""

    TRANSFERS = "transfers", Unit.SEQUENCES, "whose KV came whole"
    TRANSFER_ELAPSED = "transfer_elapsed", Unit.MS, "until they could generate, on average"
    WAIT_OF_TRANSFER = "wait_of_transfer", Unit.MS, "of it, at the side that is too small"
    USUAL_WAIT_OF_TRANSFER = "usual_wait_of_transfer", Unit.MS, "the same, usually"
    WAY_PER_GIB = "way_per_gib", Unit.MS, "on the way and not hidden, for each GiB"
    USUAL_WAY_PER_GIB = "usual_way_per_gib", Unit.MS, "the same, usually"
    JUDGED_SPLITS = "judged_splits", Unit.REQUESTS, "whose prompt was computed elsewhere"
    WORSE_SPLITS = "worse_splits", Unit.REQUESTS, "of these, slower than predicted for here"
    REGRET = "regret", Unit.MS, "by how much, together"
    CORRUPT_BLOCKS = "corrupt_blocks", Unit.EACH, "that differ from their digests"
    LOST_TRANSFERS = "lost_transfers", Unit.SEQUENCES, "whose KV did not come, or was not right"
    LEASES_ENDED = "leases_ended", Unit.TIMES, "a transfer made no progress until its lease ended"
    OLDEST_TRANSFER = "oldest_transfer", Unit.SECONDS, "that the oldest one waited for its seal"
    TRIED_TRANSFERS = "tried_transfers", Unit.SEQUENCES, "that asked for blocks"
    REFUSED_TRANSFERS = "refused_transfers", Unit.SEQUENCES, "of these, that found none"
    RESERVED_BLOCKS = "reserved_blocks", Unit.EACH, "in quarantine, on average"
    STRANDED_BLOCKS = "stranded_blocks", Unit.EACH, "of these, of transfers that came to nothing"
