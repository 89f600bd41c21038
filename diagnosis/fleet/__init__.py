"""A fleet: what several servers say of themselves, judged together.

replica      one server's own account
compare      one replica's latency against the others', on requests of the same kind
sides        whose fault a finding is: the traffic's, the machine's, the settings'
findings     findings of all replicas, by symptom and culprit tenant
judge        one bad replica, bad traffic, or not enough to say
thresholds   every number that decides
words        the verdict in sentences
view         all of it, as `phasescope diagnose` prints it for several servers

A pure fold over accounts that were read elsewhere.
"""
