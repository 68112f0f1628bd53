"""Policies: pure functions from the state of a run to decisions, one a file."""
