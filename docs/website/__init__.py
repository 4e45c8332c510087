"""Make the project's web pages: notebooks that were executed, documents, and generated references.

``make site`` calls ``python -m website``. Nothing here is shipped. The folder is not named *site*,
because a site is the cluster of a user.
"""
