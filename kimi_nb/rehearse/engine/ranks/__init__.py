"""What the processes of a group do together: find each other, and transfer KV cache."""
