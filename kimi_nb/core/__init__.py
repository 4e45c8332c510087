"""Provide what every other package needs: errors, quoting, evidence, processes, redaction."""
