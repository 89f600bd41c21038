"""Hours of healthy traffic on real servers, to count false alarms."""
