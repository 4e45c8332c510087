"""The stand-in engine: strict as vLLM's own start, and as quick as a test wants it."""
