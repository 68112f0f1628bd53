"""From ready groups to new weights, live or replayed from the log."""
