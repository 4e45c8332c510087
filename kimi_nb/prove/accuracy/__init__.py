"""How well a service answers, against what the documents publish.

``published`` what they print, ``statistics`` when two shares differ, ``settings`` what was not the
same, ``results`` a measured score, ``lm_eval`` and ``ais_bench`` the two tools, ``tools`` where
they are installed, ``runner`` how one is run, ``stage`` what a notebook calls.
"""
