"""The diagnosis of servers in virtual time (`lab/twins`), with faults and without."""
