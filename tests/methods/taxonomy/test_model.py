import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette import Document, FakeEncoder, TaxonomyModel, load_data, load_model
from palmette.cli import main
from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.methods.taxonomy import Hierarchy
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.search import RelevanceCutoff, fit_cut
from support.alone import Index
from support.taxonomies import KINDS, chain, train_zoo, zoo
from support.taxonomies import zoo_model as texts
from support.tiny import documents, pairs


def fit(data: Any, **options: Any) -> TaxonomyModel:
    """A model of a fake encoder; by default it hardly learns."""
    return train_zoo(data, **{"encoder": FakeEncoder(8), "steps": 1, "dimension": 4} | options)


@cache
def tables() -> TaxonomyModel:
    return train_zoo(queries="lookup", documents="lookup", learning_rate=2e-3)


@pytest.fixture(scope="module", params=[texts, tables], ids=["texts", "tables"])
def index(request: pytest.FixtureRequest) -> Index:
    return Index.build(zoo(), request.param())


def test_a_node_finds_itself_and_all_above_it(index: Index) -> None:
    for node in ("owl 3", "dog 7", "bee 0"):
        assert {hit.id for hit in index.search(node, k=3)} == set(chain(node))
        assert [hit.id for hit in index.search(node, k=3, order="specific")] == chain(node)
    assert {hit.id for hit in index.search("cat", k=2)} == {"cat", "animal"}
    assert index.model.describe() == {"nodes": 45, "edges": 44, "depth": 2, "leaves": 40, "dimension": 16}
    if index.model.config.queries == "lookup":
        for text in ("owl 3.", "OWL 3.", " Owl 3. "):  # ids and names of any case
            assert [hit.id for hit in index.search(text, k=3, order="specific")] == chain("owl 3")


def test_words_bring_the_exact_match_first_and_leave_the_ancestors() -> None:
    index, leaves = Index.build(zoo(), texts()), [d.id for d in zoo() if len(d.id.split()) == 2]
    alone, found = (index.search(leaves, k=3, lexical=words) for words in (0, "auto"))
    for hits in (alone, found):
        assert [{hit.id for hit in some} for some in hits] == [set(chain(node)) for node in leaves]
    first = sum(hits[0].id == node for node, hits in zip(leaves, alone, strict=True))
    assert first < 5, "ancestors score higher"
    assert [hits[0].id for hits in found] == leaves
    assert {hit.id for hit in index.search("cat", k=2, lexical="auto")} == {"cat", "animal"}


def test_a_code_finds_its_node_and_all_above_it() -> None:
    """Part numbers stand in names, in ids or in both; the encoder reads nothing in them."""
    nodes = [Document(id="part", text="part of a car")]
    for kind in KINDS:
        nodes.append(Document(id=kind, text=f"{kind} pump", metadata={"parents": ["part"]}))
        for n in range(10):
            code = f"{kind[0].upper()}X-{1000 + 37 * n}"
            text = f"{kind} pump number {n}, " + (code if n % 2 else "steel")
            id = f"{kind} {n}" if n % 2 else code
            nodes.append(Document(id=id, text=text, metadata={"parents": [kind], "code": code}))
    codes = [(node.metadata["code"], node.id) for node in nodes if "code" in node.metadata]
    index = Index.build(nodes, train_zoo(nodes))
    asked = [f" {code.lower()}. " for code, _ in codes]
    for search in ({"order": "specific"}, {"order": "specific", "cut": 0.5}, {}):
        found = index.search(asked, k=3, lexical="auto", **search)
        right = sum(hits[0].id == node for hits, (_, node) in zip(found, codes, strict=True))
        assert right >= (38 if search else 20), "words put it first where the text has it"
        assert all("part" in {hit.id for hit in hits} for hits in found)
    assert [texts().nodes.spelled_out(text) for text in ("owl 3", "7")] == ["owl 3", "7"], "no codes"


def test_scores_in_a_hierarchy_have_a_scale(index: Index) -> None:
    sure = {hit.id: hit.score for hit in index.search("owl 3", k=45, lexical=0)}
    assert min(sure[id] for id in chain("owl 3")) > 0.7
    assert max(sure[id] for id in sure.keys() - chain("owl 3")) < 0.5


def test_an_exact_match_counts_as_likely_as_its_root_lets_it() -> None:
    """Root .7, exact match .4: given the root, it is likely."""
    model = train_zoo()
    index, query = Index.build(zoo(), model), model.encode_queries(["owl 3"], None)["vector"]
    raw = query @ model.cutoff.nodes.numpy().T
    by_id = dict(zip([d.id for d in zoo()], raw[0].tolist(), strict=True))
    low, high = sorted(by_id[id] for id in chain("owl 3"))[::2]
    slope = (math.log(0.7 / 0.3) - math.log(0.4 / 0.6)) / (high - low)
    model.module.cut.copy_(torch.tensor([0.0, slope, math.log(0.4 / 0.6) - slope * low, 6.0]))
    likely = np.array(list(by_id))[model.cutoff.probability(query, raw)[0] >= 0.5]
    assert set(likely) < set(chain("owl 3")), "not all of them by themselves"
    assert [hit.id for hit in index.search("owl 3", k=3, order="specific")] == chain("owl 3")
    assert {hit.id for hit in index.search("owl 3", k=9, cut=0.5)} == set(chain("owl 3"))
    assert index.search("owl 3", k=9, cut=0.75) == [], "nothing is that likely"


def test_an_explanation_is_the_chain_of_ancestors(index: Index) -> None:
    scores = {hit.id: hit.score for hit in index.search("owl 3", k=45)}
    explanation = index.explain("owl 3", "owl 3")
    assert [step["id"] for step in explanation.detail["chain"]] == chain("owl 3")
    for step in explanation.detail["chain"]:
        assert step["score"] == pytest.approx(scores[step["id"]], abs=1e-3)
        assert step["probability"] > 0.5
    assert "▸ owl (" in explanation.text


def test_documents_that_are_no_nodes() -> None:
    made = Index.build([*zoo(), Document(id="new", text="owl 3 of the zoo at night")], texts())
    hit = next(hit for hit in made.search("owl 3 at night", k=46, lexical=0) if hit.id == "new")
    assert [step["id"] for step in hit.explain().detail["chain"]] == [None]
    assert [h.id for h in made.search("owl 3", k=46, within="owl") if h.id == "new"] == []
    with pytest.raises(InputError, match="'new' is no node"):
        Index.build([Document(id="new", text="new")], tables())
    with pytest.raises(NotFoundError, match="no node is called 'wolf'"):
        tables().encode_queries(["wolf"], None)
    with pytest.raises(ConfigError, match="knows no embeddings"):
        tables().encode_queries(np.zeros((1, 1), np.float32), None)


def test_a_changed_text_is_no_longer_the_known_one() -> None:
    same, changed = zoo()[1], Document(id="dog", text="a submarine", metadata={"parents": ["animal"]})
    model = texts()
    arrays = model.encode_documents([same, changed, Document(id="other", text="dog")])
    head = model.module.document_head(torch.from_numpy(model.encoder.encode(["dog", "a submarine"])))
    np.testing.assert_allclose(arrays["vector"][1], head[1].numpy(), atol=1e-5)
    assert np.abs(arrays["vector"][0] - head[0].numpy()).max() > 1e-3, "a known node has its own row as well"
    np.testing.assert_allclose(arrays["vector"][0], arrays["vector"][2], atol=1e-5)
    assert arrays["node"].tolist() == [1, 1, -1]


def test_edges_parents_paths_and_hierarchies_are_one() -> None:
    bare = [Document(id=d.id, text=d.text) for d in zoo()]
    edges = [(d.id, parent) for d in zoo() for parent in d.metadata.get("parents", [])]
    for made in (fit(bare, edges=edges), fit(zoo()), fit(Hierarchy.from_edges(edges))):
        found = made.nodes.hierarchy
        assert {(found.ids[c], found.ids[p]) for c in range(45) for p in found.parents[c]} == set(edges)


def test_a_file_of_names_is_a_taxonomy_by_itself(tmp_path) -> None:
    above = {"animal": [], "cat": ["animal"], "dog": ["animal"], "plant": [], "rose": ["plant"]}
    names, texts = tmp_path / "names.jsonl", tmp_path / "texts.jsonl"
    names.write_text("\n".join(json.dumps({"id": id, "text": id, "parents": up}) for id, up in above.items()))
    assert sorted(fit(names).nodes.hierarchy.ids) == sorted(above)
    texts.write_text("\n".join(json.dumps({"id": d.key, "text": d.text}) for d in documents()))
    with pytest.raises(InputError, match="no document names its parents in metadata"):
        fit(texts)


def test_judged_queries_match_what_lies_above_their_answers() -> None:
    leaves = [node for node in zoo() if "number" in node.metadata]
    asked = [(f"which {leaf.key.split()[0]} is number {leaf.metadata['number']}", leaf) for leaf in leaves]
    data = load_data([*asked, *((d.text, d) for d in zoo())], dev_fraction=0)
    model = train_zoo(data, encoder=FakeEncoder(64), steps=200)
    hits = Index.build(zoo(), model).search("which owl is number 4", k=3, order="specific")
    assert [hit.id for hit in hits] == chain("owl 4")


def test_without_a_hierarchy_grades_are_distances() -> None:
    model = fit(pairs(), encoder=FakeEncoder(32), dimension=0, steps=2, batch_size=8)
    assert model.nodes.hierarchy is None
    made = Index.build(documents(), model)
    assert len(made.search("red owl", k=5, order="specific")) == 5
    with pytest.raises(ConfigError, match="within='red-owl' needs a hierarchy"):
        made.search("red owl", within="red-owl")
    with pytest.raises(InputError, match="needs a hierarchy"):
        TaxonomyModel.fit(pairs(), queries="lookup", documents="lookup")


def test_without_a_hierarchy_towers_begin_as_the_encoder_and_few_questions_do_not_lead_them_away() -> None:
    draw, encoder = np.random.default_rng(0), FakeEncoder(24)
    texts = [f"document number {at}" for at in range(200)]
    luck = [(f"question {at} for {draw.integers(10**6)}", texts[draw.integers(200)]) for at in range(40)]
    model = fit(luck, encoder=encoder, dimension=0, steps=30)
    asked = [query for query, _ in luck]
    found = model.encode_queries(asked, TaxonomySearch())["vector"] @ model.module.node_vectors.numpy().T
    contents = [document.content for document in load_data(luck).corpus]
    expected = 20 * encoder.encode_queries(asked) @ encoder.encode(contents).T
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert train_zoo(dimension=0, steps=0).config.dimension == 64, "of a hierarchy"


def test_the_recipe_finetunes_on_far_matches_only(tmp_path) -> None:
    model = train_zoo(recipe="pretrain-finetune", steps=20, output_dir=tmp_path)
    assert model.record.steps == 20
    assert (tmp_path / "finetune" / "training.jsonl").exists()
    assert {"cut precision", "cut recall"} <= model.record.metrics.keys()
    again = train_zoo(recipe="pretrain-finetune", steps=20, output_dir=tmp_path, resume=True)
    assert again.fingerprint == model.fingerprint


def test_paths_lie_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"animal > {kind} > {kind} {n}" for kind in ("cat", "dog", "owl") for n in range(4)]
    (tmp_path / "paths.txt").write_text("\n".join(paths))
    ckpt, place = str(tmp_path / "ckpt"), str(tmp_path / "index")
    train = ["train", "taxonomy", str(tmp_path / "paths.txt"), "--out", ckpt, "--quiet"]
    tables = "--queries lookup --documents lookup --dimension 16 --steps 300 --learning-rate 0.002".split()
    assert main([*train, *tables]) == 0
    nodes = str(tmp_path / "ckpt.nodes.jsonl")
    assert nodes in capsys.readouterr().out, "the next command names the documents"
    assert main(["index", ckpt, nodes, "--out", place, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["search", place, "owl 3", "-k", "3", "--json", "--order", "specific", "--lexical", "0"]) == 0
    assert [hit["text"] for hit in json.loads(capsys.readouterr().out)] == ["owl 3", "owl", "animal"]


def test_edges_lie_in_a_file(tmp_path: Path) -> None:
    terms, edges, ckpt = (tmp_path / name for name in ("terms.jsonl", "edges.tsv", "ckpt"))
    terms.write_text("\n".join(json.dumps({"id": id, "text": id}) for id in ("animal", "owl", "snowy", "cat")))
    edges.write_text("owl\tanimal\ncat\tanimal\nsnowy\towl")
    options = f"--edges {edges} --out {ckpt} --encoder fake:8:3 --dimension 4 --steps 2 --batch-size 2 --quiet"
    assert main(["train", "taxonomy", str(terms), *options.split()]) == 0
    hierarchy = load_model(ckpt).nodes.hierarchy
    assert [hierarchy.ids[row] for row in hierarchy.ancestors(hierarchy.row("snowy"))] == ["snowy", "owl", "animal"]


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=20)
def test_a_higher_score_is_never_less_probable(seed: int, count: int, deep: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    nodes, asked = torch.randn(count, 3, generator=generator) * 4, torch.randn(2, 3, generator=generator)
    scores = torch.randn(2, 9, generator=generator).mul(12).sort(descending=True).values
    cut = RelevanceCutoff(nodes, torch.tensor([0.7, 0.1, -1.0, float(deep)]))
    chances = cut.probability(asked.numpy(), scores.numpy())
    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances, axis=1) <= 1e-6).all()


def test_fitted_probabilities_are_those_that_were_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    gaps, scores = (torch.randn(400, 20, generator=generator) * 3 for _ in range(2))
    true = torch.sigmoid(0.8 * gaps + 0.3 * scores - 1)
    relevant = torch.rand(true.shape, generator=generator) < true
    torch.testing.assert_close(fit_cut(gaps, scores, relevant), torch.tensor([0.8, 0.3, -1.0]), atol=0.1, rtol=0)
