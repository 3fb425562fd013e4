"""The model card: a template filled with what is known, and nothing that is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, Literal

__all__ = ["PLACE", "render_card"]

PLACE = "OWNER/NAME"
"""Stands for the repository's name until :func:`~palmette.hub.push_checkpoint` knows it."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LIMITS = (
    "It was fitted to the training data named above: on other subjects or languages, measure first.",
    "It inherits the encoder's languages, maximum length and biases.",
)
_TASKS = {
    "retriever": ("sentence-similarity", "information-retrieval", "Information retrieval"),
    "reader": ("question-answering", "question-answering", "Question answering"),
}
"""The Hub's names of what it does: the pipeline, the task, and the task in words."""


def render_card(
    *,
    method: str,
    class_name: str,
    config: Mapping[str, Any],
    encoder: Mapping[str, Any],
    record: Mapping[str, Any],
    retriever: str | None = None,
    results: Mapping[str, Mapping[str, float]] | None = None,
    evaluated_on: str | None = None,
    dataset: str | None = None,
    limits: Sequence[str] = (),
    language: Sequence[str] = (),
    license: str | None = None,
    repo_id: str = PLACE,
    kind: Literal["retriever", "reader"] = "retriever",
) -> str:
    """The text of ``README.md``, with the Hub's metadata as YAML at its head.

    Args:
        method: The method's name, as in the config.
        class_name: The model's class (``TreeModel``).
        config: The method's options.
        encoder: The encoder's ``name`` and ``revision``; the name becomes ``base_model`` if a repository's.
        record: Of the training: ``data``, ``documents``, ``pairs``, ``labelled``, ``made``, ``steps``,
            ``best_step``, ``seconds``, ``metrics``; what is missing is not mentioned.
        retriever: The adapters' class, by default ``class_name`` with ``Retriever`` for ``Model``.
        results: System → metric → value on test data, the model first, baselines after it; by default the
            record's metrics, called what they are. Metrics named ``… at level 3`` make a table of their own.
        evaluated_on: The name of the test data; by default that of the training data.
        dataset: The training data's repository on the Hub, if it has one.
        limits: Sentences on what the model is not for, beside the general ones.
        language: Codes of the data's languages.
        license: The checkpoint's licence, as the Hub spells it.
        repo_id: The repository, if it is known already.
        kind: What the template speaks of.
    """
    data = _line(record.get("data") or "data that was not named")
    reached, levels = _by_level(record.get("metrics") or {})
    rows = results or ({method: reached} if reached else {})
    place = _line(evaluated_on) if evaluated_on else data
    measured = (
        f"Measured on {place}" if results else f"At the end of training, on held-out questions of {data}"
    )
    values = next(iter(rows.values()), {})
    metadata = {
        "library_name": "palmette",
        "pipeline_tag": _TASKS[kind][0],
        "tags": ["palmette", f"palmette-{method}", "retrieval", "rag", "langchain", "llama-index"],
        "base_model": encoder["name"] if _REPOSITORY.fullmatch(str(encoder.get("name"))) else None,
        "datasets": [dataset] if dataset else None,
        "language": list(language) or None,
        "license": license,
        **_evaluation(repo_id, values, place, dataset, _TASKS[kind]),
    }
    return _template(kind).substitute(
        metadata=_yaml(metadata),
        title=_line(repo_id),
        method=_line(method),
        class_name=class_name,
        facts="\n".join(
            f"| {_cell(name)} | {_cell(value)} |" for name, value in _facts(config, encoder, record, data)
        ),
        results="\n\n".join(
            [f"{measured}:\n\n{_table(rows)}" if rows else "Not measured yet: run `palmette evaluate`."]
            + ([f"By level, on held-out questions of training:\n\n{_table(levels)}"] if levels else [])
        ),
        repo=_line(repo_id),
        retriever=retriever or class_name.removesuffix("Model") + "Retriever",
        limits="\n".join(f"- {_line(text)}" for text in (*limits, *_LIMITS)),
    )


def _facts(
    config: Mapping[str, Any], encoder: Mapping[str, Any], record: Mapping[str, Any], data: str
) -> Iterable[tuple[str, str]]:
    """The rows of the table at the top."""
    yield "Options", ", ".join(f"`{name}={_brief(value)}`" for name, value in config.items()) or "none"
    revision = f" at `{encoder['revision']}`" if encoder.get("revision") else ""
    yield "Encoder", f"`{encoder.get('name', 'not recorded')}`{revision}"
    sizes = [f"{record[name]:,} {name}" for name in ("documents", "pairs") if record.get(name)]
    labels = [] if record.get("labelled", True) else ["made from the documents alone, without labels"]
    if record.get("made"):
        labels = ["made from the documents, in place of those given"]
    yield "Training data", ", ".join([data, *sizes, *labels])
    if steps := record.get("steps"):
        best = record.get("best_step")
        kept = ", none better than the start" if best == 0 else ""
        if best and best != steps:
            kept = f", best after {best:,}"
        yield "Training", f"{steps:,} steps{kept}, {record.get('seconds', 0):,.0f} s"
    for change in record.get("changes", ()):
        yield "Changed since", ", ".join(f"{name}: {value}" for name, value in change.items())


def _brief(value: object) -> str:
    """A value for a table; of a long list only how many."""
    return f"[{len(value)} values]" if isinstance(value, list) and len(value) > 16 else repr(value)


def _by_level(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Metrics of the whole, and those of its levels: ``{"level 3": {"ndcg@10": …}}``."""
    whole: dict[str, float] = {}
    levels: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        metric, at, place = name.partition(" at ")
        if at:
            levels.setdefault(place, {})[metric] = value
        else:
            whole[name] = value
    return whole, levels


def _evaluation(
    repo_id: str, values: Mapping[str, float], place: str, dataset: str | None, task: tuple[str, str, str]
) -> dict[str, Any]:
    """The Hub's ``model-index``, which shows the measured values beside the card."""
    from huggingface_hub import EvalResult

    if not values:
        return {}
    scores = [
        EvalResult(
            task_type=task[1],
            task_name=task[2],
            dataset_type=dataset or "custom",
            dataset_name=place,
            metric_type=name.lower(),
            metric_name=name,
            metric_value=float(value),
        )
        for name, value in values.items()
    ]
    return {"metrics": [name.lower() for name in values], "model_name": repo_id, "eval_results": scores}


def _yaml(metadata: Mapping[str, Any]) -> str:
    from huggingface_hub import ModelCardData

    return str(ModelCardData(**metadata).to_yaml()).strip()


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    metrics = list(dict.fromkeys(name for values in rows.values() for name in values))

    def row(system: str, values: Mapping[str, float]) -> str:
        cells = (f"{values[name]:.3f}" if name in values else "–" for name in metrics)
        return f"| {_cell(system)} | {' | '.join(cells)} |"

    head = f"| | {' | '.join(map(_cell, metrics))} |\n|---|{'---:|' * len(metrics)}"
    return "\n".join([head, *(row(system, values) for system, values in rows.items())])


def _line(value: object) -> str:
    """One line of text: a newline in a name must not end a table or start a heading."""
    return " ".join(str(value).split())


def _cell(value: object) -> str:
    return _line(value).replace("|", "\\|")


@cache
def _template(kind: str) -> Template:
    name = {"retriever": "card.md", "reader": "reader.md"}[kind]
    return Template((files("palmette.hub") / name).read_text(encoding="utf-8"))
