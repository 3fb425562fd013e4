"""Writes a sentence-transformers model as the folder of an ONNX encoder, and compares both before it is kept."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from palmette.arrays import unit_rows
from palmette.config import check_path
from palmette.encoder.base import Encoder, Kind
from palmette.encoder.load import load_encoder
from palmette.encoder.local.find import GRAPHS
from palmette.encoder.onnx.encoder import INPUTS, OUTPUTS, OnnxEncoder
from palmette.encoder.onnx.folder import RECORD, TOKENIZER, OnnxFolder, Record
from palmette.encoder.options import EncoderOptions
from palmette.errors import ConfigError, EncodingError, InputError, MissingExtraError
from palmette.machine.devices import require_torch
from palmette.machine.folders import atomic_folder, is_occupied

if TYPE_CHECKING:
    from palmette.encoder.local.sentence_transformer import SentenceEncoder

CHECKED = (
    "How do I copy a folder and everything in it?",
    "owl",
    "The museum opens at nine. On Mondays it is closed. Children under six pay nothing.",
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2",
    "Die Bibliothek liegt am Fluss, gleich hinter der Brücke.",
    "La receta lleva dos huevos, harina y un poco de sal; se hornea media hora.",
    "東京は日本の首都です。人口は約千四百万人です。",
    "Error 0x80070005: access is denied (code 5)",
    "The treaty was signed in 1848, two years after the war had begun, and moved the border to the river.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. " * 12,
    "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9",
    "Fever, headache and a stiff neck call for a doctor at once.",
)
"""Texts on which an export is compared with its source."""
LEAST_EXPORT_COSINE = {"float32": 0.99999, "int8": 0.9}
"""Cosine with the source below which an export is not kept, by precision."""
_OPSET = 17
"""Version of ONNX's operators: ONNX Runtime has it since 1.12."""
_exporting = threading.Lock()


@dataclass(frozen=True)
class Export:
    """An exported encoder: its folder, and how near its vectors are to the source's on :data:`CHECKED` texts."""

    path: Path
    precision: str
    bytes: int
    lowest_cosine: float
    largest_difference: float


def export_onnx(encoder: str | Path | Encoder, folder: str | Path, *, int8: bool = False) -> Export:
    """Write a sentence-transformers model to a new folder, for ``load_encoder("onnx:FOLDER")``.

    With float32 weights its vectors are the source's but for rounding. An index that was built with the source can be
    opened with either: ``Index.open(path, encoder="onnx:FOLDER")``.

    Args:
        encoder: The model: what :func:`palmette.load_encoder` takes.
        folder: Where to write; new or empty.
        int8: Keep weights in eight bits: a quarter of the size, and faster. Its vectors differ a little
            from the source's, so that an index built with the source takes questions from it, and no documents.
    """
    require_torch("an export")
    if find_spec("onnx") is None:
        raise MissingExtraError("onnx", "train", "an export")
    place = check_path(folder).absolute()
    if is_occupied(place):
        raise InputError(f"{place} is not an empty folder: name a new one")
    source = _check_source(load_encoder(encoder, device="cpu", dtype="float32").plain)
    precision = "int8" if int8 else "float32"
    with atomic_folder(place) as draft:
        draft.mkdir()
        _write_modules(source, draft)
        graph = draft / GRAPHS[0]
        graph.parent.mkdir()
        _write_graph(source, graph)
        if int8:
            _quantise(graph)
        _move_weights(graph)
        written = OnnxFolder.read(draft, None, GRAPHS, f"onnx:{place}")
        lowest, largest = _compare(source, OnnxEncoder(written, EncoderOptions(), name=f"onnx:{place}"), precision)
        record = Record(
            source=source.to_config(),
            precision=precision,
            content=written.content,
            checked={"texts": len(CHECKED), "lowest_cosine": lowest, "largest_difference": largest},
            versions={name: version(name) for name in ("palmette", "torch", "transformers", "onnxruntime")},
        )
        (draft / RECORD).write_text(json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n", "utf-8")
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return Export(place, precision, size, lowest, largest)


def _check_source(encoder: Encoder) -> SentenceEncoder:
    """Return a model of a transformer and a pooling; raise ConfigError for any other one."""
    from palmette.encoder.local.sentence_transformer import SentenceEncoder

    if not isinstance(encoder, SentenceEncoder) or not encoder.has_offsets or encoder.asymmetric:
        raise ConfigError(
            f"only a sentence-transformers model of one transformer and a pooling is exported, unlike {encoder.name!r}"
        )
    if encoder.truncate is not None:
        raise ConfigError(
            f"{encoder.name!r} is truncated to {encoder.truncate} columns: export it without truncate=, which "
            "the export takes when it is loaded"
        )
    if encoder.precision != "float32":
        raise ConfigError(f"{encoder.name!r} computes in {encoder.precision}: give its name, so that float32 is loaded")
    return encoder


def _write_modules(source: SentenceEncoder, folder: Path) -> None:
    """Write everything but the graph: settings, tokenizer, pooling and what follows it."""
    model, rows = source.model, list[dict[str, Any]]()
    for number, module in enumerate(model):
        kind = type(module).__name__
        place = f"{number}_{kind}" if number else ""
        rows.append({"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"})
        if number:
            (folder / place).mkdir()
            saved: Any = module
            saved.save(str(folder / place))
    first: Any = model[0]
    backend = getattr(first.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"the tokenizer of {source.name!r} has no {TOKENIZER}, which ONNX encoders need")
    (folder / TOKENIZER).write_text(backend.to_str(), "utf-8")
    first.auto_model.config.to_json_file(folder / "config.json", use_diff=False)
    padding = {"pad_token": first.tokenizer.pad_token, "padding_side": first.tokenizer.padding_side}
    settings = {"prompts": dict(source.prompts), "default_prompt_name": None}  # perhaps given when it was loaded
    files = {
        "modules.json": rows,
        "sentence_bert_config.json": {"max_seq_length": source.max_length},
        "tokenizer_config.json": padding,
        "config_sentence_transformers.json": {**settings, "truncate_dim": model.truncate_dim},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_graph(source: SentenceEncoder, path: Path) -> None:
    """Write the transformer as an ONNX graph, by torch's exporter."""
    import torch
    from torch import nn

    first: Any = source.model[0]
    with source.between_passes() as model:
        network = copy.deepcopy(first.auto_model)
        features = model.preprocess(list(CHECKED[:3]))
    network.set_attn_implementation("eager")  # fused attention is no operator of ONNX
    names = [name for name in INPUTS if name in features]

    class TokenStates(nn.Module):
        """The transformer with its inputs in order, giving token states alone."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *values: Any) -> Any:
            return self.network(**dict(zip(names, values, strict=True))).last_hidden_state

    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, OUTPUTS[0])}
    with _quiet(), torch.inference_mode():
        # the exporter by torch.export takes ten seconds and two more packages, for the same graph
        torch.onnx.export(
            TokenStates().eval(),
            tuple(features[name] for name in names),
            str(path),
            input_names=names,
            output_names=[OUTPUTS[0]],
            dynamic_axes=axes,
            opset_version=_OPSET,
            dynamo=False,
        )


def _quantise(path: Path) -> None:
    """Keep the weights of a graph in eight bits, with a scale for each column; activations are scaled as they come.

    Leaving out the matrices that narrow, whose inputs have a few large numbers, raises the cosine from .995 to .997
    and no nDCG, for 34 MB instead of 23.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingExtraError("onnx", "train", "An int8 export") from error
    small = path.with_name("small.onnx")
    with _quiet():
        quantize_dynamic(path, small, weight_type=QuantType.QInt8, per_channel=True)
    small.replace(path)


def _move_weights(path: Path) -> None:
    """Move the weights of a graph to a file beside it, which ONNX Runtime maps: half the memory, and half the time."""
    import onnx

    graph = onnx.load(path)
    path.unlink()
    beside = f"{path.name}_data"
    onnx.save(graph, path, save_as_external_data=True, location=beside, size_threshold=1024)
    path.with_name(beside).chmod(path.stat().st_mode)


def _compare(source: Encoder, exported: Encoder, precision: str) -> tuple[float, float]:
    """Compare vectors of texts and sentences: lowest cosine and largest difference; raise if they are too far."""
    kinds: tuple[Kind, ...] = ("query", "document")
    pairs = [(source.encode(CHECKED, kind=kind), exported.encode(CHECKED, kind=kind)) for kind in kinds]
    sentence_pair = [each.encode_sentences(CHECKED)[1] for each in (source, exported)]
    if not np.array_equal(sentence_pair[0].spans, sentence_pair[1].spans):
        raise EncodingError(f"{source.name!r}: the export cuts other sentences than the model; it is not kept")
    largest = max(float(np.abs(a - b).max()) for a, b in pairs)
    pairs.append((sentence_pair[0].floats(), sentence_pair[1].floats()))
    lowest = min(float((unit_rows(a) * unit_rows(b)).sum(axis=1).min()) for a, b in pairs)
    if not lowest >= LEAST_EXPORT_COSINE[precision] - 1e-3 * (
        precision == "float32"
    ):  # sentences are rounded to eight bits
        raise EncodingError(
            f"{source.name!r}: vectors of the {precision} export have cosine {lowest:.4f} with the model's, and "
            f"{LEAST_EXPORT_COSINE[precision]} is needed; it is not kept"
            + ("; export float32" if precision == "int8" else "")
        )
    return round(lowest, 6), round(largest, 8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the warnings of exporters, which are about other models: the result is compared anyway."""
    import logging

    with _exporting:  # loggers and filters of warnings are the whole process's
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(before)
