"""Explore and rehearse choices in a notebook: as widgets, or as a table of the same facts.

Example::

    panel = run.panel(run.choose("pd"))
    panel  # JupyterLab shows widgets; elsewhere the table is shown
    panel.choose(hw="h200")  # the same as selecting from the drop-down list

The panel changes nothing for the cells below it: these follow the parameters cell alone.
"""
