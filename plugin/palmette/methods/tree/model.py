"""TreeModel: index the leaves, search any level, explain along the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.config import check_keys, check_range
from palmette.encoder import Encoder, Kind
from palmette.methods.tree.config import TreeConfig, TreeOptions, TreeSearch, TreeTraining
from palmette.methods.tree.module import Tree
from palmette.methods.tree.start import begin, fit_multiplier
from palmette.methods.tree.task import TreeTask
from palmette.model import DEFAULT_ENCODER, Model, Queries
from palmette.pairs import EncodedPairs
from palmette.search.kernels import folded
from palmette.search.probe import ArraySpec, Floats, Found, Probe
from palmette.types import Document, Explanation, Part

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.store.backend import View

__all__ = ["TreeModel"]

LEAVES = "leaves"


class TreeModel(Model):
    """A learned binary tree (ReTreever). Scores are Σ min(q, d) over the nodes of a level: 0 … 1, 1 for twins.

    Example:
        >>> from palmette import Document, FakeEncoder, Index, TreeModel
        >>> texts = [f"{animal} number {i}" for i in range(8) for animal in ("cat", "dog", "owl")]
        >>> pairs = [(text.upper(), text) for text in texts]
        >>> model = TreeModel.fit(pairs, encoder=FakeEncoder(32), depth=4, steps=5, batch_size=8)
        >>> index = Index.in_memory(model)
        >>> _ = index.add(Document(id=str(i), text=text) for i, text in enumerate(texts))
        >>> [hit.document.text for hit in index.search("owl number 3", k=1, level=4)]
        ['owl number 3']
    """

    method: ClassVar[str] = "tree"
    retriever: ClassVar[str] = "TreeRetriever"
    config_class = TreeConfig
    training_class = TreeTraining
    search_class = TreeSearch
    config: TreeConfig
    module: Tree

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool | None = None,
        cache: EncodingCache | str | Path | None = None,
        **options: Unpack[TreeOptions],
    ) -> Self:
        """Train a tree.

        Args:
            data: Anything :func:`palmette.load_data` reads: a BEIR folder, pairs, or documents without labels.
            encoder: A sentence-transformers model, by name or folder, or an :class:`palmette.Encoder`; stays frozen.
            device: Where to train; ``None`` for the best there is.
            output_dir: Keeps the log and the state to ``resume`` from.
            resume: Go on with the run in ``output_dir``.
            progress: Progress bars; ``None`` shows them on a terminal.
            cache: Where encodings are kept; ``None`` for the user's cache folder.
            options: Those of :class:`TreeConfig` and :class:`TreeTraining`.
        """
        how: dict[str, Any] = {
            "device": device,
            "output_dir": output_dir,
            "resume": resume,
            "progress": progress,
        }
        return cls._fit(data, dict(options), encoder=encoder, cache=cache, **how)

    @classmethod
    def task(
        cls,
        config: TreeConfig,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> tuple[TreeConfig, TreeTask]:
        """Encode the pairs once, and start the tree from the corpus's geometry."""
        config = config.replace(width=encoder.dimension)
        pairs = EncodedPairs.encode(data, encoder, cache, seed=seed, progress=progress)
        tree = Tree(config)
        generator = torch.Generator().manual_seed(seed)
        begin(tree, pairs.documents, generator)
        fit_multiplier(tree, *pairs.batch(pairs.sample(256, generator)))
        return config, TreeTask(tree, pairs)

    @classmethod
    def module_for(cls, config: TreeConfig, encoder: Encoder) -> Tree:
        """A tree of the config's shape."""
        return Tree(config)

    def arrays(self) -> tuple[ArraySpec, ...]:
        """The leaf probabilities; every coarser level is a sum of them."""
        return (ArraySpec(LEAVES, (self.config.leaves,)),)

    def _leaves(self, embeddings: Floats) -> Floats:
        with torch.inference_mode():
            x = torch.from_numpy(embeddings).to(self.encoder.device)  # [B, d]
            leaves: Floats = self.module(x).cpu().numpy()  # [B, 2^D]
        return leaves

    def encode_documents(self, documents: Sequence[Document]) -> dict[str, NDArray[np.generic]]:
        """Leaf probabilities [N, 2^D]."""
        return {LEAVES: self._leaves(self.encoder.encode([document.content for document in documents]))}

    def encode_queries(self, texts: Sequence[str], options: TreeSearch) -> Queries:
        """Leaf probabilities [Q, 2^D]."""
        return self.encode_embeddings(self.encoder.encode_queries(texts))

    def encode_embeddings(self, vectors: Floats) -> Queries:
        """Route given embeddings: [Q, d] → [Q, 2^D]."""
        return {LEAVES: self._leaves(vectors)}

    def vectors(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        level: int | None = None,
        sqrt: bool = False,
        **options: Any,
    ) -> Floats:
        """The probabilities of a level's nodes: [N, 2^level].

        With ``sqrt`` their square roots, whose inner product Σ √(p·q) bounds the overlap Σ min(p, q) from above:
        an engine that knows only inner products can fetch candidates with it.
        """
        check_keys("tree vectors", options, ("level", "sqrt"))
        fold = self._fold(self.options({"level": level}))
        embedded = self.encoder.encode_queries(texts) if kind == "query" else self.encoder.encode(texts)
        nodes = _fold(self._leaves(embedded), fold)
        return np.sqrt(nodes) if sqrt else nodes

    def check_options(self, options: TreeSearch) -> None:
        """A level of this tree."""
        check_range("tree search", "level", options.level, 1, self.config.depth)

    def _fold(self, options: TreeSearch) -> int:
        """Leaves per node of the level."""
        level = self.config.depth if options.level is None else options.level
        return 1 << (self.config.depth - level)

    def search(self, view: View, queries: Queries, k: int, options: TreeSearch) -> Found:
        """Nearest by nTVD at the level, exactly."""
        fold = self._fold(options)
        nodes = _fold(queries[LEAVES], fold)
        return view.nearest(Probe(LEAVES, nodes, "overlap", fold), k)

    def explain(
        self,
        query: Queries,
        arrays: Mapping[str, NDArray[np.generic]],
        options: TreeSearch,
        evidence: Mapping[str, Any],
    ) -> Explanation:
        """Follow the larger share of the overlap from the root: what turns off at each node adds its part."""
        fold = self._fold(options)
        q, d = (_fold(np.asarray(a[LEAVES], np.float32).reshape(1, -1), fold)[0] for a in (query, arrays))
        depth = len(q).bit_length() - 1
        shared = [np.minimum(q, d).reshape(2**level, -1).sum(-1) for level in range(depth + 1)]
        reach = [[p.reshape(2**level, -1).sum(-1) for level in range(depth + 1)] for p in (q, d)]
        parts, steps, node, path = [], [], 0, ""
        for level in range(1, depth + 1):
            left, right = shared[level][2 * node], shared[level][2 * node + 1]
            turn = int(right > left)
            other = path + ("L" if turn else "R")
            parts.append(Part(f"subtree {other}", float(min(left, right)), {"node": other}))
            path += "R" if turn else "L"
            node = 2 * node + turn
            steps.append(
                {
                    "node": path,
                    "query": float(reach[0][level][node]),
                    "document": float(reach[1][level][node]),
                }
            )
        parts.append(
            Part(f"{'leaf' if fold == 1 else 'node'} {path}", float(shared[depth][node]), {"node": path})
        )
        score = float(shared[0][0])
        return Explanation(score, parts, _words(score, path, steps), {"path": path, "nodes": steps})

    def describe(self) -> dict[str, Any]:
        """Shape and steepness of the tree."""
        norms = self.module.directions.norm(dim=1)  # [N]
        levels = range(self.config.depth)
        slopes = [round(float(norms[2**h - 1 : 2 ** (h + 1) - 1].mean()), 3) for h in levels]
        return {
            "depth": self.config.depth,
            "leaves": self.config.leaves,
            "levels": [2 ** (h + 1) for h in levels],
            "mean slope per level": slopes,
            "multiplier": round(float(self.module.multiplier), 3),
        }


def _fold(leaves: Floats, fold: int) -> Floats:
    """Sum runs of columns: [B, c] → [B, c / fold]."""
    return leaves if fold == 1 else folded(leaves, fold)


def _words(score: float, path: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the path."""
    if not steps:
        return f"overlap {score:.3f}"
    trail = ", ".join(
        f"{s['node']} ({s['query']:.0%} of the question, {s['document']:.0%} of the document)"
        for s in steps[:3]
    )
    return f"overlap {score:.3f}; both lean down {path}: {trail}{', …' if len(steps) > 3 else ''}"
