"""Find in logs which rank or node failed first, and why."""
