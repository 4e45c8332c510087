"""What ``vllm serve`` checks before it serves, and how it starts."""
