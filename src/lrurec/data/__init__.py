"""From any event log to a dataset folder. Knows files and ids, not models."""
