"""Diagnosis: from recorded facts to a ranked list of causes, with evidence and runbooks.

    symptoms     the classes that are told apart, and what a finding holds
    needs        what each symptom needs to be seen; without it the symptom abstains
    evidence     what is measured, with unit and meaning
    thresholds   numbers of detection and verdicts; other rooms have their own
    threshold_table   all of them: value, unit, meaning, reason
    detection    counts per half second, the baseline, change detection
    attribution  excess time, charged to causes
    promises     SLO classes that are missed, and in which form
    verdicts     findings, checks by counting, confidence, the verdict
    fleet        several servers: one bad replica, bad traffic, or not enough to say
    routed       a fleet as its gateway sees it: slow engines, old signals, missed prefixes
    importers    what can be told from evidence that other tools have written
    spans        a stretch of time of a record
    settings_search  what other settings would have given every SLO class
    root_cause   differential replay, what-if replay, capacity
    autopilot    proposes a better limit or sets it, and goes back where it does not help

It reads facts and replays the scheduler. It never touches a running engine, and knows nothing of
the gateway, the device or the views.
"""
