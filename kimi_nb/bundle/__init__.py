"""Turn a plan into files that a person could run by hand.

Everything is pure except `writer`, which writes the files to disk. Other packages call
`scripts.files(plan)` and `writer.write(files, folder)`.
"""
