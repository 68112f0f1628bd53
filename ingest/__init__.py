"""From harnesses to the log, and from the log to the lake."""
