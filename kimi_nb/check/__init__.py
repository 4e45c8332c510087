"""Check a deployment: a plan of ours, the commands of a document, or anybody's scripts.

The package is pure and sits above `plan`. `reading` turns scripts into a
`view.deployment.Deployment`, `rules` check it, and `rewriting` updates a script for another version
of the engine. Callers use `judge.plan(plan)`, `judge.files(paths)` or `judge.documents(...)`; each
returns `findings.Findings`. `engine_versions` asks the same of each version of the engine.
"""
