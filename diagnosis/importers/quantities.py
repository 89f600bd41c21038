"""What is measured of imported evidence, with unit and meaning."""

from __future__ import annotations

from diagnosis.evidence import Quantity, Unit


class Imported(Quantity):
    """What is measured of a stretch of the record."""

    REQUESTS_PER_S = "requests_per_s", Unit.PER_S, "requests that came"
    FRONT_EACH = "front_each", Unit.MS, "a request's time before the queue"
    QUEUE_EACH = "queue_each", Unit.MS, "a request's time in the queue"
    PREFILL_EACH = "prefill_each", Unit.MS, "a request's time from the queue to its first token"
    TOKEN_EACH = "token_each", Unit.MS, "time per output token"
    PROMPT_EACH = "prompt_each", Unit.TOKENS, "prompt tokens of a request"
    OUTPUT_EACH = "output_each", Unit.TOKENS, "output tokens of a request"
    HIT_SHARE = "hit_share", Unit.SHARE, "of the prompt tokens, cached"
    WAITING = "waiting", Unit.REQUESTS, "in the queue, in the mean"
    RUNNING = "running", Unit.REQUESTS, "that run, in the mean"
    RUNNING_MOST = "running_most", Unit.REQUESTS, "that ran at once, at most"
    KV_USAGE = "kv_usage", Unit.SHARE, "of the KV cache in use, while requests wait"
    PREEMPTIONS = "preemptions", Unit.TIMES, "requests lost their blocks"
    PREEMPTED = "preempted", Unit.REQUESTS, "that lost their blocks and wait, in the mean"
    FAILED = "failed", Unit.REQUESTS, "ended in an error"
    ENDED = "ended", Unit.REQUESTS, "that ended"
    STEP_EACH = "step_each", Unit.MS, "length of a step"
    DEVICE_EACH = "device_each", Unit.MS, "time of the device in a step"
    BY_PROMPTS = "by_prompts", Unit.MS, "of the longer time per token, with others' prompts"
    BY_BATCH = "by_batch", Unit.MS, "of it, with fuller batches"
    BY_NEITHER = "by_neither", Unit.MS, "of it, with neither"
    STILL = "still", Unit.SECONDS, "longest time without a token while requests ran"
    LOST = "lost", Unit.RECORDS, "records that are missing between others"
