"""What a plan, a start and a result look like, as pictures with a plain twin.

picture = topology.picture(plan)
picture                       # in a notebook: the picture; printed: its words and its numbers
picture.save(folder)          # NAME.svg and NAME.csv
"""
