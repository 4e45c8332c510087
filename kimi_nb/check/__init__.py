"""Check a deployment: a plan of ours, the commands of a document, or anybody's scripts."""
