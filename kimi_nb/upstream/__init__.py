"""Read what upstream publishes, and hold our recipes against it.

For example::

    found = upstream.read([Path("recipes"), Path("vllm-ascend")], "k2.6")
    found.deployments[0].roles[0].argv  # (("--trust-remote-code", True), ...)
    found.unread  # a sentence for each file that was left out

`checkout` opens the files of a folder, whatever it holds. `vllm_recipes` and `vllm_ascend` turn
them into `published.Deployment`: pages are rendered as their project does (`recipe_pages`,
`recipe_choices`, `recipe_shape`, `recipe_words`, `recipe_images`), the shape of tests is
`ascend_cases`, documents are read by `guides`. Nothing of a checkout is executed.

`group_shapes` counts the groups, nodes and ranks of what is published (`counted.Deployment`),
`plan_differences` tells its differences from a plan, `as_recipe` writes it as a recipe of ours, and
`watch` says which of our recipes differ from a checkout.
"""

from kimi_nb.upstream.overview import Found, read

__all__ = ["Found", "read"]
