"""The FAQ: the documents' questions as printed, words in any number and in Chinese, and caveats."""

from __future__ import annotations

import pytest

from kimi_nb.catalog import known_faults
from kimi_nb.diagnose import faq, signatures

# As the documents print them.
ASKED = {
    "What is the recommended TP/DP configuration for single-node deployment?": "tp-and-dp",
    "What transformer version is required for tools_call feature?": "transformers-for-tools",
    'API returns `{"error":"Model not found"}` or `404` when requesting with `model: '
    '"Kimi-K2-Thinking"`?': "model-not-found",
}
# The headings of section 14 of the H200 guide, and the entry of each.
CAVEATS = {
    "``pip`` inside the Conda environment": "pip-in-the-environment",
    "FP8 KV cache with chunked prefill": "fp8-cache-and-chunked-prefill",
    "Speculative decoding and prefix caching": "drafts-and-prefix-caching",
    "``--mm-encoder-tp-mode`` and memory": "vision-encoder-memory",
    "``--skip-non-local-expert-weights``": "skip-non-local-experts",
    "MoE tuning config naming": "tuned-moe-file-name",
    "vLLM version pinning": "pinned-version",
    "Reasoning mode default": "thinking-by-default",
    "Login node usage": "login-node",
    "Conda activation on Discoverer+": "conda-activate",
}


@pytest.mark.parametrize("question", ASKED)
def test_the_questions_of_the_documents_are_found_first_as_printed(question):
    assert faq.search(question).ids[0] == ASKED[question]


@pytest.mark.parametrize("heading", CAVEATS)
def test_every_caveat_of_the_h200_guide_is_an_entry_and_found_by_its_heading(heading):
    entry = next(one for one in signatures.entries() if one.id == CAVEATS[heading])
    assert entry.refs == ("h200-slurm 14",) and "(h200-slurm 14)" in entry.cause
    assert faq.search(heading).ids[0] == entry.id


@pytest.mark.parametrize(
    "words, wanted",
    [
        ("显存不足", "out-of-memory"),
        ("端口被占用", "port-taken"),
        ("端口被占用了怎么办", "port-taken"),
        ("乱码", "garbled-exclamation-marks"),
        ("磁盘空间不足", "disk-full"),
        ("工具调用", "no-tool-parser"),
        ("shared memory full", "no-space-shm"),
        ("my port is already in use, what now", "port-taken"),
        ("how busy are the gpus", "watch-the-devices"),
        ("nvidia-smi dmon", "watch-the-devices"),
        ("dp-rank-start", "launcher-parameters"),
        ("prefix cache hit rate", "prefix-cache-hits"),
    ],
)
def test_words_find_their_entry_among_the_first(words, wanted):
    assert wanted in faq.search(words).ids[:4], faq.search(words).ids


@pytest.mark.parametrize("words", ["", "  ", "the of and", "flux capacitor", "花生酱"])
def test_words_of_nothing_find_nothing(words):
    assert not len(faq.search(words))


def test_a_search_is_short_and_each_entry_once():
    found = faq.search("memory").ids
    assert 3 < len(found) <= 12 and len(set(found)) == len(found)


def test_known_faults_of_versions_are_found_by_every_word():
    ids = [row[0] for row in faq.known_faults().rows]
    assert ids == [one.id for one in known_faults.every()]
    assert [row[0] for row in faq.known_faults("lmhead hang").rows] == ["va-lmhead-tp-hang"]
    assert [row[0] for row in faq.known_faults("issues 15297 k2.6").rows] == [
        "va-k2x-026-oom",
        "va-k25-026-slow",
    ]
    assert not len(faq.known_faults("flux capacitor"))
