"""What a fleet's gateway sees of its engines, judged: which of them is slow, which signal is old,
whether requests go where their prefix is; and what an engine sees of the KV that others send it.

symptoms     the fleet's symptoms, what a finding of one holds, and what each needs to be seen
evidence     what is measured
thresholds   every number that decides
sequences    what the gateway knows of each sequence at an engine
steps        the time of an engine's steps, from when its tokens came
signals      how old the reports of an engine are
prefixes     which prefixes were asked for before, and where
engines      the engines that are there
ticks        all of that, second by second
window       the last seconds beside the time that they are compared with
transfers    KV that comes from other engines, second by second
causes/      one module for each symptom
abstentions  what cannot be judged, by name
ranking      which faults are said, and in which order
diagnoser    the fold over facts that gives the verdict

A pure fold over facts. Servers that are asked one by one are compared in
`diagnosis.fleet`.
"""
