"""The requests, steps and ledgers of a journal as Parquet files, for DuckDB or pandas.

columns     every column: its name, kind, unit and meaning
rows        a fact or a timeline as a row
parquet     writes the files, a row group at a time (needs pyarrow)
"""
