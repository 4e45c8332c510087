"""The panel of a notebook: choose, look, rehearse. Its plain twin is a table of the same facts.

    panel = run.panel("pd")
    panel                       # in JupyterLab widgets; headless and printed: the table
    panel.choose(hw="h200")     # what the drop-downs do

It is for looking and rehearsing: what the cells below it do, the parameters cell alone decides.
"""
