"""The layers of each stage of a pipeline, as vLLM divides them.

>>> layers_of(61, 2), layers_of(61, 4)
((31, 30), (15, 15, 16, 15))
"""

from __future__ import annotations


def layers_of(layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers of each stage (get_pp_indices of vLLM 0.32.0).

    What does not divide goes to the last stages but one, so that the last, which has the output
    layer, and with three stages or more the first, which has the embeddings, get it last.
    VLLM_PP_LAYER_PARTITION, which says otherwise, is not read.
    """
    each, more = divmod(layers, stages)
    out = [each] * stages
    for at in range(2, more + 2):
        out[-at] += 1
    return tuple(out)
