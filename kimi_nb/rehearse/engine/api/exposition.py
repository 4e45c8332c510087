"""Write families of metrics as Prometheus text, in the form of the prometheus_client that vLLM uses.

>>> family = Family("x_total", "counter", "Things.", created=1.0)
>>> family.add({"model_name": "m"}, 2.0)
>>> print(*family.lines(), sep=chr(10))
# HELP x_total Things.
# TYPE x_total counter
x_total{model_name="m"} 2.0
# HELP x_created Things.
# TYPE x_created gauge
x_created{model_name="m"} 1.0
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence


class Family:
    """A family of metrics and its samples.

    Counters, histograms and summaries have a second family beside them, which says since when they
    count; ``created`` is that time, and 0 stands for none.
    """

    def __init__(self, name: str, kind: str, said: str, created: float = 0.0) -> None:
        self._name, self._kind, self._said, self._created = name, kind, said, created
        self._samples: list[str] = []
        self._labels: list[str] = []

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Add the sample of a counter or a gauge."""
        text = self._labelled(labels)
        self._samples.append(f"{self._name}{text} {float(value)}")

    def histogram(
        self, labels: Mapping[str, str], edges: Sequence[float], counts: Iterable[int], total: float
    ) -> None:
        """Add the samples of a histogram from the count of each bucket, the last one without edge."""
        text = self._labelled(labels)
        sofar = 0
        for edge, count in zip((*map(str, edges), "+Inf"), counts, strict=True):
            sofar += count
            le = _text({**labels, "le": edge})
            self._samples.append(f"{self._name}_bucket{le} {float(sofar)}")
        self._samples.append(f"{self._name}_count{text} {float(sofar)}")
        self._samples.append(f"{self._name}_sum{text} {float(total)}")

    def summary(self, labels: Mapping[str, str], count: int, total: float) -> None:
        """Add the samples of a summary without quantiles."""
        text = self._labelled(labels)
        self._samples.append(f"{self._name}_count{text} {float(count)}")
        self._samples.append(f"{self._name}_sum{text} {float(total)}")

    def lines(self) -> list[str]:
        """Return the text of the family, and of the times since when it counts."""
        out = [*_head(self._name, self._kind, self._said), *self._samples]
        if self._created and self._labels and self._kind != "gauge":
            counter = self._kind == "counter"
            name = f"{self._name.removesuffix('_total') if counter else self._name}_created"
            out += _head(name, "gauge", self._said)
            out += [f"{name}{text} {self._created}" for text in self._labels]
        return out

    def _labelled(self, labels: Mapping[str, str]) -> str:
        text = _text(labels)
        self._labels.append(text)
        return text


def bucket(edges: Sequence[float], value: float) -> int:
    """Return the place of a value among the buckets with these upper edges."""
    return bisect_left(edges, value)


def _head(name: str, kind: str, said: str) -> list[str]:
    return [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]


def _text(labels: Mapping[str, str]) -> str:
    # A served model name comes from the command line and can hold anything.
    pairs = (
        '{}="{}"'.format(name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\""))
        for name, value in labels.items()
    )
    return f"{{{','.join(pairs)}}}" if labels else ""
