"""Define the mark on everything that a stand-in has made."""

MARK = "REHEARSAL"
