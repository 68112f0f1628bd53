"""Who samples: the engine client, and the embedded engine (its own process, SGLang's contract)."""
