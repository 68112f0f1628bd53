"""One module a client: how it starts, what it is told, and what it makes of it."""
