"""Real faults in a running server, from outside: drills, their traffic and their sealed labels."""
