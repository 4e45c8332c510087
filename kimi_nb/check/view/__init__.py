"""A deployment as the rules see it, wherever it comes from: engines, containers, clients, jobs."""
