"""The model card: a template filled with known facts, without the unknown ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, Literal

REPO_PLACEHOLDER = "OWNER/NAME"
"""Stands for the repository's name until :func:`~palmette.hub.push_checkpoint` knows it."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_MARKUP = re.compile(r"[\\<\[\]`&]|^[#>+-]")
_LIMITS = (
    "It was fitted to the training data named above: on other subjects or languages, measure first.",
    "It inherits the encoder's languages, maximum length and biases.",
)
_TASKS = {
    "retriever": ("sentence-similarity", "information-retrieval", "Information retrieval"),
    "reader": ("question-answering", "question-answering", "Question answering"),
}
"""Kind → the Hub's name of the pipeline, of the task, and the task in words."""


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
    repo_id: str = REPO_PLACEHOLDER,
    kind: Literal["retriever", "reader"] = "retriever",
) -> str:
    """Write ``README.md``, with the Hub's metadata as YAML at its head.

    ``results`` are system → metric → value on the data ``evaluated_on``, the model first, baselines after it; by
    default the record's metrics, marked as such. Metrics named ``… at level 3`` make a table of their own. ``record``
    is the JSON of a :class:`~palmette.hub.checkpointed.TrainingRecord`; missing facts are left out. ``retriever`` is
    the adapters' class, by default ``class_name`` with ``Retriever`` for ``Model``. ``dataset`` is the training data's
    repository on the Hub, ``limits`` are sentences beside the general ones, ``license`` is spelt as on the Hub.
    """
    from huggingface_hub import EvalResult, ModelCardData

    data = _line(record.get("data") or "data that was not named")
    place = _line(evaluated_on) if evaluated_on else data
    levels: dict[str, dict[str, float]] = {}  # "level 3", or "" for the whole model → metric → value
    for name, value in (record.get("metrics") or {}).items():
        metric, _, level = name.partition(" at ")
        levels.setdefault(level, {})[metric] = value
    reached = levels.pop("", {})
    rows = results or ({method: reached} if reached else {})
    measured = f"Measured on {place}"
    if not results:
        measured = f"At the end of training, on held-out questions of {data}"
    tables = [f"{measured}:\n\n{_table(rows)}" if rows else "Not measured yet: run `palmette evaluate`."]
    if levels:
        tables.append(f"By level, on held-out questions of training:\n\n{_table(levels)}")
    pipeline, task, task_name = _TASKS[kind]
    values = next(iter(rows.values()), {})
    scores = [
        EvalResult(
            task_type=task,
            task_name=task_name,
            dataset_type=dataset or "custom",
            dataset_name=place,
            metric_type=name.lower(),
            metric_name=name,
            metric_value=float(value),
        )
        for name, value in values.items()
    ]
    metadata = ModelCardData(
        library_name="palmette",
        pipeline_tag=pipeline,
        tags=["palmette", f"palmette-{method}", "retrieval", "rag", "langchain", "llama-index"],
        base_model=encoder["name"] if _REPOSITORY.fullmatch(str(encoder.get("name"))) else None,
        datasets=[dataset] if dataset else None,
        language=list(language) or None,
        license=license,
        metrics=[name.lower() for name in values] or None,
        model_name=repo_id if values else None,
        eval_results=scores or None,
    )
    facts = _facts(config, encoder, record, data)
    # The template's parts of this kind.
    parts = re.split(r"<!-- (\w+) -->\n", (files("palmette.hub") / "card.md").read_text(encoding="utf-8"))
    sections = [text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name in (kind, "end")]
    return Template(parts[0] + "".join(sections)).substitute(
        metadata=str(metadata.to_yaml()).strip(),
        title=_line(repo_id),
        method=_line(method),
        class_name=class_name,
        facts="\n".join(f"| {name} | {_cell(value)} |" for name, value in facts),
        results="\n\n".join(tables),
        repo=_line(repo_id),
        retriever=retriever or class_name.removesuffix("Model") + "Retriever",
        limits="\n".join(f"- {_line(text)}" for text in (*limits, *_LIMITS)),
    )


def _facts(
    config: Mapping[str, Any], encoder: Mapping[str, Any], record: Mapping[str, Any], data: str
) -> Iterable[tuple[str, str]]:
    """Yield the rows of a model card's table: options, encoder, training data, learned space and training."""
    options = []
    for name, value in config.items():
        long = isinstance(value, list) and len(value) > 16
        options.append(_code(f"{name}={f'[{len(value)} values]' if long else repr(value)}"))
    yield "Options", ", ".join(options) or "none"
    revision = f" at {_code(encoder['revision'])}" if encoder.get("revision") else ""
    yield "Encoder", f"{_code(encoder.get('name', 'not recorded'))}{revision}"
    sizes = [f"{record[name]:,} {name}" for name in ("documents", "pairs") if record.get(name)]
    labels = [] if record.get("labelled", True) or record.get("pairs") else ["without labelled pairs"]
    none = record.get("pairs") == 0 and config.get("start") != "clusters"  # which are the documents'
    yield "Training data", "none: the encoder as it is" if none else ", ".join([data, *sizes, *labels])
    if space := record.get("space"):
        gain = f"nDCG@10 {space['encoder']:.3f} → {space['ndcg@10']:.3f} on {space['questions']:,} held-out questions"
        maps = "two linear maps" if space["maps"] == 2 else "one linear map"
        way = f"{maps}, {space['way']:.0%} of the way, {gain}"
        tried = f" (a map gained {space['gain']:+.3f} nDCG@10)" if "gain" in space else ""
        none_kept = f"none: no clear gain on {space['questions']:,} held-out questions{tried}"
        yield "Learned space", way if space["maps"] else none_kept
    if steps := record.get("steps"):
        best = record.get("best_step")
        remark = ", none better than the start" if best == 0 else ""
        if best and best != steps:
            remark = f", best after {best:,}"
        yield "Training", f"{steps:,} steps{remark}, {record.get('seconds', 0):,.0f} s"


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    metrics = list(dict.fromkeys(name for values in rows.values() for name in values))
    lines = [f"| | {' | '.join(_cell(_line(name)) for name in metrics)} |", f"|---|{'---:|' * len(metrics)}"]
    for system, values in rows.items():
        cells = (f"{values[name]:.3f}" if name in values else "–" for name in metrics)
        lines.append(f"| {_cell(_line(system))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(value: object) -> str:
    """Put text on one line, with nothing in it that Markdown would read as a tag, a link, a heading or code."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(str(value).split()))


def _code(value: object) -> str:
    """Put text on one line, as code."""
    return f"`{' '.join(str(value).split()).replace('`', chr(39))}`"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
