"""The journal: all facts of the last minutes in memory, in a folder or as a dump, and read back.

It stores and replays facts; it draws no conclusions from them.

    journal, live_requests, journal_format   the journal in memory, what it carries, its file format
    journal_files, dumps, flight_recorder    rolling files, dumps, and the thread that writes them
    in_use                                   what is being written, and must not be cleaned up
    atomic_file                               files that are there whole, or not at all
    watchdog                                 notices an engine that commits no step
    journal_reader, replay                   reads files back, and feeds them to the folds
"""
