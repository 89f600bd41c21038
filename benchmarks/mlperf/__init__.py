"""MLPerf's load generator against our server: two programs that time the same requests."""
