"""Verdicts: from charged time to findings.

classifier    the fold that gives the verdict, twice a second
contributor   what the fold asks for findings
mean_harm     requests delayed on the whole, charged to causes
tail_harm, tail_findings   late tokens of a few, and causes that come back
rules         claim, evidence and excluded neighbours of each symptom
chains        by way of what the harm of a cause came
passing       whether the one blow of an alarm is over
checks        symptoms that delay nobody, found by counting
confidence    how often findings like this one were right (logistic regression)
abstentions   symptoms that cannot be judged of this engine, by name
engine_limits which limits bear on each symptom, under the names of the engine
baseline_file the reference of one run, to compare another run with
history       findings with the time in which they held, as events of spans
runbook, alerts, offline   pages, metrics, and the verdict of a journal
"""
