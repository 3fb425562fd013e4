"""The arithmetic of the quality benchmark."""

from pathlib import Path

import numpy as np
import pytest
import torch

import quality
from common import number, spread
from quality import coherence, int8, main, purity
from support.beir import write_beir
from support.tiny import documents


def test_purity_and_coherence() -> None:
    assert purity(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1])) == pytest.approx(0.8)
    texts = [*["owl night"] * 4, *["bread oven"] * 4, *["owl bread"] * 2]
    together, apart = coherence([["owl", "night"]], texts), coherence([["night", "oven"]], texts)
    assert together == pytest.approx(np.log(0.4 / (0.6 * 0.4)) / -np.log(0.4))
    assert apart == -1


def test_bytes_keep_a_vector_to_half_a_step() -> None:
    x = torch.nn.functional.normalize(torch.randn(20, 64, generator=torch.Generator().manual_seed(0)))
    step = x.abs().amax(1, keepdim=True) / 127
    assert ((int8(x) - x).abs() <= step / 2 + 1e-6).all()
    assert not torch.equal(int8(x), x)


def test_cells_show_the_spread_of_several_seeds() -> None:
    assert [spread([0.7314]), spread([0.70, 0.72]), spread([]), number(-0.0041)] == [".731", ".710 ± .010", "", "–.004"]


def test_every_row_is_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SIZES": (8, 4), "DEPTH": 4, "RATES": (1e-3,)}.items():
        monkeypatch.setattr(quality, name, value)
    corpus = ({"_id": d.id, "text": d.text} for d in documents())
    path, out = write_beir(tmp_path / "animals", corpus, (f"where is {d.id}?" for d in documents())), tmp_path / "x.md"
    how = ["--encoder", "fake:24", "--cache", str(tmp_path / "cache"), "--out", str(out)]
    main(["columns", str(path), *how])
    assert capsys.readouterr().out
    main(["columns", str(path), *how])
    assert not capsys.readouterr().out, "what is stored is not measured again"
    table = out.read_text()
    assert table.count("### animals") == 1
    for row in ("the space, int8", "Matryoshka, int8", "gentle tree, 2 bytes a column"):
        assert f"| {row} |" in table
