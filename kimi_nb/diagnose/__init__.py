"""Find in logs which rank or node failed first, and why.

The modules read files and change nothing. `signatures` holds the known failures, `first_failure`
diagnoses a running start, `doctor.examine` diagnoses whole folders of logs, and `faq` lists the
signatures.
"""
