"""What is a tree for? Its columns beside those of the space that it lies in, and its topics beside k-means.

    cd benchmarks
    python quality.py columns DATA/scifact DATA/medquad DATA/squad --questions 300 --out results/quality.md
    python quality.py topics DATA/squad python --every 2 --seeds 0 1 2 --out results/quality.md

DATA are BEIR folders with train, dev and test judgements; ``python`` is the standard library of this Python. What is
chosen is chosen on dev, figures are of test. Finished lines lie in the ``.jsonl`` beside ``--out`` and are skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from common import ENCODER, command_line, spread
from palmette import load_data, load_encoder
from palmette.arrays import as_floats
from palmette.data import RetrievalData
from palmette.encoder import EncodingCache, States
from palmette.lexical.terms import count_terms
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.explain import topics_of_texts
from palmette.methods.tree.init import initialise
from palmette.methods.tree.leaves import greedy_leaf, stored_format, to_stored
from palmette.methods.tree.module import Tree, fold_leaves
from palmette.sample import python_catalogue
from palmette.training.maths import ntvd, principal_directions, symmetric_info_nce
from palmette.training.pairs import TrainingPairs, Validation, top_documents
from palmette.training.space import fit_space
from recording import append, find, read, table, write_part

Ints = NDArray[np.int64]
SIZES = (256, 128, 64, 32, 16)
DEPTH = 10
RATES = (5e-4, 2e-3)
WORDS = 5
"""Keywords of a topic whose coherence is judged."""


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def int8(x: Tensor) -> Tensor:
    """Vectors [n, d] as bytes with a scale a row would give them back."""
    scale = x.abs().amax(1, keepdim=True) / 127
    return torch.round(x / scale) * scale


class Sides(NamedTuple):
    """Maps of vectors in the space: of queries and of documents as they are stored."""

    query: Callable[[Tensor], Tensor]
    document: Callable[[Tensor], Tensor]
    similarity: Callable[[Tensor, Tensor], Tensor] = lambda a, b: a @ b.T


class Bench:
    """A data set in its learned space."""

    def __init__(self, folder: str, args: argparse.Namespace, seed: int) -> None:
        self.data = load_data(folder, seed=seed)
        queries, documents = vectors(self.data, args)
        dev = Validation.of(self.data, seed)
        assert dev is not None
        dev = dev.with_nearest_documents(queries, documents)
        pairs = TrainingPairs(self.data, queries, documents, *self.data.pairs("train"), dev)
        space, self.facts = fit_space(pairs, seed=seed, progress=False)
        if space is not None:
            queries, documents = space.map(queries, "query"), space.map(documents, "document")
        self.pairs = TrainingPairs(self.data, queries, documents, *self.data.pairs("train"), dev)
        test = Validation.of(self.data, 0, split="test", queries=args.questions, documents=10**9)
        assert test is not None
        self.test, self.dev, self.seed = test, dev, seed

    def score(self, sides: Sides, *, dev: bool = False) -> float:
        """nDCG@10 of test or dev questions."""
        held = self.dev if dev else self.test
        q = sides.query(self.pairs.queries[torch.from_numpy(held.queries)])
        d = sides.document(self.pairs.documents[torch.from_numpy(held.documents)])
        return float(held.each(top_documents(q, d, sides.similarity)).mean())


def vectors(data: RetrievalData, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Vectors of all queries [Q, d] and documents [N, d]."""
    encoder, cache = load_encoder(args.encoder), EncodingCache(args.cache)
    found = cache.encode(encoder, data.query_texts, kind="query"), cache.encode(encoder, data.texts)
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


# -- columns --------------------------------------------------------------------------------------------------------


def matryoshka(bench: Bench) -> Callable[[int], Sides]:
    """Two maps from the principal axes of the space, whose first columns all learn from the pairs; rate by dev."""
    pairs, d = bench.pairs, bench.pairs.documents.shape[1]
    sizes, axes = (*SIZES, d), principal_directions(bench.pairs.documents).T
    best: tuple[float, list[Tensor]] = (-1.0, [])

    def sides(maps: Sequence[Tensor], size: int) -> Sides:
        return Sides(lambda x: unit((x @ maps[0])[:, :size]), lambda x: int8(unit((x @ maps[1])[:, :size])))

    for rate in RATES:
        maps = [axes.clone().requires_grad_(True) for _ in range(2)]
        scale = torch.full((len(sizes),), np.log(20.0)).requires_grad_(True)
        optimizer, draw = torch.optim.Adam([*maps, scale], lr=rate), torch.Generator().manual_seed(bench.seed)
        for step in range(401):
            if step % 100 == 0:
                with torch.no_grad():
                    quality = float(np.mean([bench.score(sides(maps, size), dev=True) for size in sizes]))
                if quality > best[0]:
                    best = quality, [weight.detach().clone() for weight in maps]
            rows = torch.randperm(len(pairs), generator=draw)[:256].numpy()
            query_rows, document_rows = pairs.query_rows[rows], pairs.document_rows[rows]
            queries, documents = pairs.queries[query_rows], pairs.documents[document_rows]
            known = pairs.known_answers(query_rows, document_rows)
            q, x = queries @ maps[0], documents @ maps[1]
            losses = [
                symmetric_info_nce(scale[at].exp() * unit(q[:, :size]) @ unit(x[:, :size]).T, known)
                for at, size in enumerate(sizes)
            ]
            optimizer.zero_grad()
            torch.autograd.backward(torch.stack(losses).mean())
            optimizer.step()
    return lambda size: sides(best[1], size)


def gentle(bench: Bench) -> Tree:
    """Tree of the space's principal directions with gentle slopes: its overlap sketches the space's distances."""
    tree = Tree(TreeConfig(depth=DEPTH, width=bench.pairs.documents.shape[1])).eval()
    assert tree.linear is not None
    directions, draw = principal_directions(bench.pairs.documents), torch.Generator().manual_seed(bench.seed)
    while len(directions) < len(tree.linear.offsets):
        basis = torch.linalg.qr(torch.randn(directions.shape[1], directions.shape[1], generator=draw))[0]
        directions = torch.cat([directions, basis])
    levels = torch.arange(1, len(tree.linear.offsets) + 1).log2().floor()
    with torch.no_grad():
        tree.linear.directions.copy_(directions[: len(levels)])
        tree.linear.slopes.copy_(0.3 * 2 ** (levels / 2))
        tree.linear.offsets.copy_(-tree.linear.directions @ bench.pairs.documents.mean(0))
    return tree


def of_tree(tree: Tree) -> Callable[[int], Sides]:
    """Levels of a tree, as an index stores them."""

    def leaves(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([tree(States(part)) for part in torch.split(x, 2048)])

    def level(size: int) -> Sides:
        def stored(x: Tensor) -> Tensor:
            found = leaves(x).numpy()
            dtype = tree.config.replace(stored=stored_format(found[:1000])).dtype
            return fold_leaves(torch.from_numpy(as_floats(to_stored(found, dtype))), size.bit_length() - 1)

        return Sides(stored, stored, ntvd)

    return level


def columns(bench: Bench) -> Iterator[tuple[str, dict[str, float]]]:
    """Systems with their nDCG@10 by columns."""
    width = bench.pairs.documents.shape[1]
    axes = principal_directions(bench.pairs.documents).T

    def principal(size: int) -> Sides:
        return Sides(lambda x: unit(x @ axes[:, :size]), lambda x: int8(unit(x @ axes[:, :size])))

    yield "the space, float32", {"all": bench.score(Sides(lambda x: x, lambda x: x))}
    yield "the space, int8", {"all": bench.score(Sides(lambda x: x, int8))}
    for name, sides, whole in (
        ("principal columns, int8", principal, width),
        ("Matryoshka, int8", matryoshka(bench), width),
        ("gentle tree, 2 bytes a column", of_tree(gentle(bench)), 2**DEPTH),
    ):
        yield name, {str(n): bench.score(sides(n)) for n in SIZES} | {"all": bench.score(sides(whole))}


# -- topics ---------------------------------------------------------------------------------------------------------


def purity(cluster: Ints, label: Ints) -> float:
    """Share of documents that have their cluster's most frequent label."""
    return float(sum(np.bincount(label[cluster == one]).max() for one in np.unique(cluster)) / len(label))


def coherence(topics: Sequence[Sequence[str]], texts: Sequence[str]) -> float:
    """Mean NPMI of pairs of a topic's words by how many texts hold them."""
    spelled, text, term = count_terms(texts)
    place, held = {word: at for at, word in enumerate(spelled)}, np.zeros((len(texts), len(spelled)), bool)
    held[text, term] = True
    found = []
    for words in topics:
        own = held[:, [place[word] for word in words]].astype(np.float32)
        both = own.T @ own / len(texts)
        for a, b in zip(*np.triu_indices(len(words), 1), strict=True):
            p = both[a, b]
            found.append(-1.0 if p == 0 else np.log(p / both[a, a] / both[b, b]) / -np.log(min(p, 1 - 1e-9)))
    return float(np.mean(found))


def class_tf_idf(texts: Sequence[str], cluster: Ints) -> list[list[str]]:
    """Words of each cluster by class-based TF-IDF."""
    spelled, text, term = count_terms(texts)
    counts = np.zeros((cluster.max() + 1, len(spelled)))
    np.add.at(counts, (cluster[text], term), 1)
    counts[:, [" " in word for word in spelled]] = 0
    weight = counts * np.log(1 + counts.sum() / len(counts) / np.maximum(counts.sum(0), 1e-9))
    best = np.argsort(-weight, axis=1)[:, :WORDS]
    return [[spelled[at] for at in row if weight[c, at] > 0] for c, row in enumerate(best)]


def of_nodes(texts: Sequence[str], leaf: Ints, depth: int) -> list[list[str]]:
    """Single words that the tree names its leaves by."""
    named = topics_of_texts(texts, leaf, depth, terms=4 * WORDS)
    single = [[w for w, _ in terms if " " not in w][:WORDS] for node, terms in named.items() if len(node) == depth]
    return [words for words in single if len(words) > 1]


def topics(name: str, args: argparse.Namespace, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Tree and k-means at 64 leaves: purity against articles or modules, and NPMI of the keywords."""
    from sklearn.cluster import KMeans

    if name == "python":
        documents = python_catalogue()[:: args.every]
        label = [str(document.metadata["module"]) for document in documents]
        found = EncodingCache(args.cache).encode(load_encoder(args.encoder), [d.content for d in documents])
        x = torch.from_numpy(found)
    else:
        data = load_data(name)
        documents, (_, x) = data.corpus, vectors(data, args)
        label = [document.key.rsplit("-", 1)[0] for document in documents]
    texts, labels = [document.content for document in documents], np.unique(label, return_inverse=True)[1]
    tree = Tree(TreeConfig(depth=6, width=x.shape[1])).eval()
    initialise(tree, x, seed)
    with torch.no_grad():
        leaf = greedy_leaf(tree(States(x)).numpy())
    means = KMeans(64, n_init=3, random_state=seed).fit(x.numpy()).labels_.astype(np.int64)
    words = of_nodes(texts, leaf, 6)
    yield "tree, its keywords", {"purity": purity(leaf, labels), "npmi": coherence(words, texts)}
    plain = class_tf_idf(texts, means)
    yield "k-means, class TF-IDF", {"purity": purity(means, labels), "npmi": coherence(plain, texts)}


# -- command --------------------------------------------------------------------------------------------------------


def tables(lines: Sequence[dict[str, Any]], heads: Sequence[str]) -> str:
    """A table for each data set."""
    parts = []
    for data in dict.fromkeys(line["data"] for line in lines):
        mine = [line for line in lines if line["data"] == data]
        rows = []
        for system in dict.fromkeys(line["system"] for line in mine):
            runs = [line["scores"] for line in mine if line["system"] == system]
            rows.append([system, *(spread([run[head] for run in runs if head in run]) for head in heads)])
        parts.append(f"### {data}\n\n{table(['', *heads], rows)}")
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "quality.md")
    parser.add_argument("part", choices=["columns", "topics"])
    parser.add_argument("data", nargs="*", help="BEIR folders; for topics, python too")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--questions", type=int, default=10**9, help="test questions at most")
    parser.add_argument("--every", type=int, default=1, help="one entry of the standard library in so many")
    parser.add_argument("--encoder", default=ENCODER)
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    args = parser.parse_args(argv)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        name = Path(folder).name
        for seed in args.seeds:
            if find(store, part=args.part, data=name, seed=seed):
                continue
            found = columns(Bench(folder, args, seed)) if args.part == "columns" else topics(folder, args, seed)
            for system, scores in list(found):
                line = {"part": args.part, "data": name, "system": system, "seed": seed}
                append(store, line | {"scores": {key: round(value, 4) for key, value in scores.items()}})
                print(line, scores, flush=True)
    lines = [line for line in read(store, "part", "data", "system", "seed") if line["part"] == args.part]
    heads = ["all", *map(str, SIZES)] if args.part == "columns" else ["purity", "npmi"]
    write_part(args.out, args.part, tables(lines, heads))


if __name__ == "__main__":
    main()
