"""The ways in which drills do harm, by what they act on."""
