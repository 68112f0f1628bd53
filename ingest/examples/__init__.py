"""Rollout code as a user would write it, run by the tests."""
