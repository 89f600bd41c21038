"""Verdicts: from charged time to findings.

classifier    the fold that gives the verdict, twice a second
contributor   what the fold asks for findings
mean_harm     requests delayed on the whole, charged to causes
tail_harm, tail_findings   late tokens of a few, and causes that come back
rules         claim, evidence and excluded neighbours of each symptom
chains        by way of what the harm of a cause came
checks        symptoms that delay nobody, found by counting
confidence    how often findings like this one were right (logistic regression)
runbook, alerts, offline   pages, metrics, and the verdict of a journal
"""
