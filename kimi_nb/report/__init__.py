"""What a run came to: its folder, read into one value.

report.collect(folder).as_dict()                         # plain values
sections.Sections(report.collect(folder)).verdict        # a section that shows itself

Notebook 11 shows the sections; `notebook.runbook.write_report` executes it.
"""

from kimi_nb.report.collect import Report, collect
from kimi_nb.report.run_files import FILE, NOTEBOOK

__all__ = ["FILE", "NOTEBOOK", "Report", "collect"]
