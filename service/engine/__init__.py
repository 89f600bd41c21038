"""The pure core of the engine: scheduling, KV block accounting, and the engine loop.

Commands and step outcomes go in; plans, emissions and facts come out. No torch, asyncio, I/O,
logging or OpenTelemetry, and no clock of its own: callers pass the time in. The same code runs in
production, in the simulator and in replay.

    inbox, plan, executor         what goes in and out: commands, plans and outcomes, the executor
    loop, scheduler               one iteration of the loop; one step from plan to commit
    planner, draft_proposer       what the next step computes
    planning/                     what it is planned with: budgets, targets, slack, rows, load
    admission, fairness, limits_record     limits, the order between tenants, limits as a fact
    token_ids, vocabulary, warm_up         checks of token ids, tokens as bytes, first steps
    sequences/                    live sequences: queue, running set, slots, pending facts
    kv/                           the KV cache: blocks, prefix cache, CPU offload
"""
