"""Views only: screens and reports drawn from frozen snapshots."""
