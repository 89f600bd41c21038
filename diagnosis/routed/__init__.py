"""What a fleet's gateway sees of its engines, judged: which of them is slow, which signal is old,
whether requests go where their prefix is.

symptoms     the fleet's symptoms, what a finding of one holds, and what each needs to be seen
evidence     what is measured
thresholds   every number that decides
sequences    what the gateway knows of each sequence at an engine
steps        the time of an engine's steps, from when its tokens came
signals      how old the reports of an engine are
prefixes     which prefixes were asked for before, and where
ticks        all of that, second by second
window       the last seconds beside the time that they are compared with
causes/      one module for each symptom
diagnoser    the fold over facts that gives the verdict

A pure fold over the gateway's facts. Servers that are asked one by one are compared in
`diagnosis.fleet`.
"""
