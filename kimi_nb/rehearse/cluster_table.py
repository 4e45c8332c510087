"""The names of what `kubernetes_pods` writes for `simulated_cluster`: the file, and labels of its pods.

>>> FILE
'cluster.json'
"""

from __future__ import annotations

FILE = "cluster.json"
NAME = "leaderworkerset.sigs.k8s.io/name"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
