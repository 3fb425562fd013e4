"""What users import, and what importing costs."""

import importlib
import subprocess
import sys

import pytest

import palmette

NAMES = (
    "Answer Document Encoder Explanation FakeEncoder FieldsModel Hit Index LayersModel Model "
    "PalmetteError Pair Part Passage PassageOptions PathsModel Reader RetrievalData SpaceModel TaxonomyModel TreeModel "
    "__version__ evaluate load_data load_encoder load_model recency sample_data write_questions"
).split(" ")


def test_the_public_names_are_these() -> None:
    assert sorted(palmette.__all__) == sorted(NAMES)
    assert dir(palmette) == palmette.__all__
    for name in NAMES:
        assert getattr(palmette, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Forest'"):
        palmette.Forest  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    heavy = "torch numba faiss sentence_transformers transformers scipy huggingface_hub".split()
    packages = "palmette.encoder, langchain_palmette, llama_index.retrievers.palmette"
    script = f"import sys; sys.path[:0] = {sys.path!r}; import {packages}; print({{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_error_is_in_the_drawn_tree() -> None:
    errors = importlib.import_module("palmette.errors")
    drawing = errors.__doc__
    for name, cls in vars(errors).items():
        if not isinstance(cls, type) or not issubclass(cls, palmette.PalmetteError):
            continue
        assert name in drawing
        for base in cls.__mro__[1:]:
            if base in (ValueError, LookupError, ImportError):
                line = next(line for line in drawing.splitlines() if f" {name} " in f"{line} ")
                inherits = cls.__bases__[0] is not palmette.PalmetteError
                assert inherits or f"also {base.__name__}" in line
