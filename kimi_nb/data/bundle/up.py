"""Every node of the bundle, up to started engines: pyinfra inventory.py up.py

Then, when each engine answers, on the node that has a proxy.sh: ./node.sh open
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import node_call
import node_steps

for verb in node_call.VERBS:
    node_steps.step(name=node_steps.TITLES[verb], verb=verb)
