"""The objects of a plan on Kubernetes: LeaderWorkerSets, their scripts, and values for llm-d."""
