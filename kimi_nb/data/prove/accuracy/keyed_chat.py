"""AISBench's chat model with its API key from the environment.

AISBench writes the whole configuration into its results; a key in it would stay there.
"""

import os

from ais_bench.benchmark.models import VLLMCustomAPIChat
from ais_bench.benchmark.registry import MODELS


@MODELS.register_module()
class KeyedChat(VLLMCustomAPIChat):
    """VLLMCustomAPIChat that takes its key from OPENAI_API_KEY."""

    def __init__(self, **options):
        super().__init__(**options)
        self.headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
