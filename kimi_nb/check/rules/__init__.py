"""Named rules over a deployment, a module for each family; `registry` finds and applies them.

A rule's id begins with the first word of its module's name.
"""
