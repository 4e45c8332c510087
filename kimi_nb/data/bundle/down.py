"""Stop what up.py has started, and give the nodes back: pyinfra inventory.py down.py"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import node_steps

for verb in ("stop", "release"):
    node_steps.step(name=node_steps.TITLES[verb], verb=verb)
