"""Recordings of real engines that the importers' tests read."""
