"""The model card: valid metadata, honest tables, lines that run."""

from __future__ import annotations

import ast
import re

import pytest
from huggingface_hub import ModelCard

from support.checkpoints import card_of

RESULTS = {"tree": {"nDCG@10": 0.7441, "Recall@10": 0.9}, "BM25 | stemmed": {"nDCG@10": 0.858}}


def test_metadata_is_what_the_hub_reads():
    card = ModelCard(
        card_of(
            encoder={"name": "sentence-transformers/all-MiniLM-L6-v2", "revision": "abc"},
            results=RESULTS,
            evaluated_on="SQuAD: test",
            dataset="rajpurkar/squad",
            language=["en", "no"],
            license="mit",
        )
    )
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == ("palmette", "sentence-similarity", "mit")
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data.datasets == ["rajpurkar/squad"]
    assert data.language == ["en", "no"]
    assert {"palmette", "palmette-tree"} <= set(data.tags)
    assert {item.metric_name: item.metric_value for item in data.eval_results} == RESULTS["tree"]
    assert {item.dataset_name for item in data.eval_results} == {"SQuAD: test"}
    assert "`sentence-transformers/all-MiniLM-L6-v2` at `abc`" in card.text
    assert "| tree | 0.744 | 0.900 |\n| BM25 \\| stemmed | 0.858 | – |" in card.text


def test_what_is_unknown_is_left_out_and_names_do_not_break_out_of_their_place():
    card = ModelCard(card_of(encoder={"name": "/home/me/encoder"}, record={}))
    assert (card.data.base_model, card.data.eval_results, card.data.datasets) == (None, None, None)
    assert "Not measured yet" in card.text
    assert "None" not in card.text
    text = card_of(record={"data": "a\n---\n# b | $repo", "metrics": {"x": 1.0}}, limits=["no\n# go"])
    assert ModelCard(text).data.eval_results[0].dataset_name == "a --- # b | $repo"
    assert "\n# b" not in text
    assert "- no # go" in text


@pytest.mark.parametrize(("name", "retriever"), [("TreeModel", None), ("FieldsModel", "MultiFieldRetriever")])
def test_examples_parse_and_name_the_retriever(name, retriever):
    text = card_of(class_name=name, retriever=retriever, repo_id="me/ckpt")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    modules = [node.module for block in blocks for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
    assert modules == ["palmette", "langchain_palmette", "llama_index.retrievers.palmette"]
    expected = retriever or "TreeRetriever"
    assert all(f'{expected}.from_pretrained("me/ckpt", documents)' in block for block in blocks[1:])
    assert 'load_model("me/ckpt")' in blocks[0]


HOSTILE = "<img src=x onerror=alert(1)>"


def test_no_fact_of_a_checkpoint_becomes_markup():
    """Whatever name or value a record holds: outside of code and of the metadata, each bracket is escaped."""
    names = [
        HOSTILE,
        f"\\{HOSTILE}",
        f"x | {HOSTILE}",
        f"ndcg@10 at {HOSTILE}",
        "[a](javascript:alert(1))",
        f"a\n# {HOSTILE}",
    ]
    text = card_of(
        record={"data": f"\\{HOSTILE}", "metrics": dict.fromkeys(names, 0.5)},
        config={HOSTILE: f"`{HOSTILE}`"},
        encoder={"name": f"a` {HOSTILE}", "revision": HOSTILE},
        results={f"\\{HOSTILE}": {HOSTILE: 0.5, "\\[a](b)": 0.25}},
        evaluated_on=f"\\\\{HOSTILE}",
        limits=[f"\\{HOSTILE}", "+ x"],
    )
    ModelCard(text)
    body = re.sub(r"```.*?```|`[^`\n]*`", "", text.split("---", 2)[2], flags=re.DOTALL)
    assert body.count("img") >= 4
    for bracket in re.finditer(r"[<\[]", body):
        slashes = re.search(r"\\*$", body[: bracket.start()])
        assert slashes
        assert len(slashes[0]) % 2, body[bracket.start() - 20 : bracket.end() + 20]
    assert "\n# <" not in body
