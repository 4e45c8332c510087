"""Named rules over a deployment, a module for each family; `registry` finds and applies them."""
