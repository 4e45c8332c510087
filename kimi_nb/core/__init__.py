"""Provide what every other package needs: errors, quoting, evidence, processes, redaction.

Nothing here knows about Kimi or vLLM. The modules that other packages use most are `errors`,
`evidence`, `processes` (child programs that never outlive this process), `redaction`, `data_files`
and `paths`.
"""
