"""The stand-in for vLLM: as strict as vLLM when it starts, without a model or an accelerator."""
