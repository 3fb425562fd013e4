"""TaxonomyModel: a dual encoder over a taxonomy, searched and explained along its edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.arrays import Floats
from palmette.data import RetrievalData
from palmette.encoder import Encoder, FakeEncoder
from palmette.errors import ConfigError, InputError
from palmette.machine.text import shorten
from palmette.methods.base import VECTOR, Arrays, FitInputs, Model, Queries
from palmette.methods.taxonomy.config import TRAINING, TaxonomyConfig, TaxonomySearch
from palmette.methods.taxonomy.data import Sampler, TaxonomyData, training_queries
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.methods.taxonomy.module import DualEncoder
from palmette.methods.taxonomy.search import NODE, RelevanceCutoff, node_rows, rank
from palmette.methods.taxonomy.training import TaxonomyTask, recall_by_query
from palmette.search.plan import ArraySpec, Candidates, Score, SearchPlan
from palmette.store.protocols import View
from palmette.types import Document, Explanation, Part

FILE = "nodes.json"
PAIRS_RATE = 0.2
"""Share of the learning rate without a hierarchy: towers that begin as the encoder stay near it, and no document's row
learns the questions about it by heart before the towers have learned what is true of all."""
WORD_WEIGHT_OF_NODES = 0.2
"""Weight of words in a hierarchy: they find the exact match, and ancestors share few of them."""


class TaxonomyModel(Model):
    """A dual encoder for taxonomies: a query finds its exact match and everything more general.

    Scores are 0 … 1 with a hierarchy, near 1 for all that surely match. Without one they are T times the inner product
    of the two embeddings: differences of log probabilities.

    Examples:
        >>> from palmette import Document, FakeEncoder, Index, TaxonomyModel
        >>> from palmette.methods.taxonomy import Hierarchy
        >>> paths = [f"animal > {a} > {a} number {i}" for a in ("dog", "cat", "owl") for i in range(9)]
        >>> tree = Hierarchy.from_paths(paths)
        >>> model = TaxonomyModel.fit(tree, encoder=FakeEncoder(32), dimension=16, steps=150, learning_rate=0.01)
        >>> index = Index.build(tree.documents(), model)
        >>> [hit.document.text for hit in index.search("owl number 3", k=3, order="specific")]
        ['owl number 3', 'owl', 'animal']
    """

    method: ClassVar[str] = "taxonomy"
    retriever: ClassVar[str] = "TaxonomyRetriever"
    config_class = TaxonomyConfig
    search_class = TaxonomySearch
    cuts_documents = False
    training_defaults = TRAINING
    config: TaxonomyConfig
    module: DualEncoder

    @classmethod
    def fit(cls, data: Any, *, edges: Iterable[tuple[str, str]] | None = None, **options: Any) -> Self:
        """Train the two towers; see :meth:`palmette.Model.fit`.

        Args:
            data: Documents that name their parents in metadata, as ``"parents"`` (or come with ``edges``), a
                :class:`~palmette.methods.taxonomy.Hierarchy`, or anything that :func:`palmette.load_data` reads.
                Judged queries match their documents and what lies above them; without a hierarchy they match
                what they are judged to, and lower grades count as farther.
            edges: (child id, parent id), where metadata does not say.
            options: See :meth:`palmette.Model.fit`.
        """
        if options.get("queries") == "lookup":  # tables read no text
            options["encoder"] = FakeEncoder(1)
        loaded = TaxonomyData.load(data, edges, options.get("seed", 0))
        return super().fit(loaded, **options)

    @classmethod
    def uses_space(cls, config: TaxonomyConfig, data: RetrievalData) -> bool:
        """True where pairs alone train two text towers; with a hierarchy a question matches ancestors as well."""
        judged = getattr(data, "hierarchy", None) is None
        return judged and config.queries == "text" and config.documents != "lookup"

    @classmethod
    def task(cls, config: TaxonomyConfig, inputs: FitInputs) -> tuple[TaxonomyConfig, TaxonomyTask]:
        """Encode every text once, and initialise the towers."""
        data, encoder, cache, seed, progress = inputs
        loaded, lookup = TaxonomyData.load(data, seed=seed), config.queries == "lookup"
        usual = 64 if loaded.hierarchy is not None else encoder.dimension
        sizes = {"width": encoder.dimension, "nodes": len(loaded.corpus)}
        config = config.replace(dimension=config.dimension or usual, **sizes)
        train, dev = training_queries(loaded, lookup=lookup, max_distance=config.max_distance, seed=seed)

        encode = partial(cache.encode, encoder, progress=progress)
        train_inputs, dev_inputs = (
            torch.from_numpy(questions.inputs if lookup else encode(questions.inputs.tolist(), kind="query"))
            for questions in (train, dev)
        )
        contents = [document.content for document in loaded.corpus]
        documents = None if lookup else torch.from_numpy(encode(contents, kind="document"))
        sampler = Sampler(train.matches, config.sampling)
        nodes = Nodes.of(loaded.corpus, loaded.hierarchy, sampler.log_frequencies.numpy())
        module, factor = DualEncoder(config, nodes), config.multiplier
        module.initialise(documents, torch.Generator().manual_seed(seed))
        task = TaxonomyTask(module, train, dev, sampler, factor, train_inputs, dev_inputs, documents, progress=progress)
        if loaded.hierarchy is None:  # the towers begin as the encoder
            module.lr_scale = {"": PAIRS_RATE}
            with torch.no_grad():
                task.start = recall_by_query(task.found(), dev.matches)
        elif config.negatives == "masked":
            task.hard = min(config.hard, len(loaded.corpus) - int(train.matches.counts.max()))
        return config, task

    @classmethod
    def module_for(cls, config: TaxonomyConfig, encoder: Encoder) -> DualEncoder:
        """Untrained towers."""
        return DualEncoder(config)

    @property
    def nodes(self) -> Nodes:
        """Documents that the model was trained on."""
        assert self.module.nodes is not None
        return self.module.nodes

    def extras(self) -> dict[str, bytes]:
        """The nodes and their edges."""
        return {FILE: self.nodes.to_json()}

    def load_extras(self, files: Mapping[str, bytes]) -> None:
        """Read the nodes back."""
        self.module.nodes = Nodes.from_json(files[FILE])

    def arrays(self) -> tuple[ArraySpec, ...]:
        """An embedding, and the row of the node that a document is (−1 for none)."""
        vector = ArraySpec(VECTOR, (self.config.dimension,), searched="inner_product")
        return vector, ArraySpec(NODE, (), "int64", valid_range=(-1, len(self.nodes) - 1))

    def encode_documents(self, documents: Sequence[Document], vectors: Floats | None = None) -> Arrays:
        """Embeddings [N, d] and rows of nodes [N]."""
        (places, rows), texts, device = self.nodes.find(documents), None, self.encoder.device
        if self.module.document_head is not None:
            if vectors is None:
                vectors = self.encoder.encode([document.content for document in documents])
            texts = torch.from_numpy(vectors).to(device)
        else:
            rows = places
            if (lost := np.flatnonzero(rows < 0)).size:
                raise InputError(
                    f"document {documents[lost[0]].id!r} is no node of this taxonomy, and a model with "
                    "documents='lookup' knows no others: train with documents='both', or train again with it"
                )
        with torch.inference_mode():
            embedded = self.module.documents(texts, torch.from_numpy(rows).to(device)).cpu().numpy()  # [N, d]
        return {VECTOR: embedded, NODE: places}

    @property
    def accepts_embeddings(self) -> bool:
        """True unless queries are nodes of a lookup table."""
        return self.config.queries == "text"

    def encode_queries(self, queries: Sequence[str] | Floats, options: TaxonomySearch) -> Queries:
        """Embeddings times T [Q, d], of texts, of encoder vectors [Q, w], or of the nodes that the texts name."""
        inputs: NDArray[Any]
        if isinstance(queries, np.ndarray):
            if not self.accepts_embeddings:
                raise ConfigError("a taxonomy of lookup tables knows no embeddings: ask for a node by id or name")
            inputs = queries
        elif self.accepts_embeddings:
            coded = self.nodes.hierarchy is not None
            texts = [self.nodes.spelled_out(text) if coded else text for text in queries]
            inputs = self.encoder.encode_queries(texts)
        else:
            inputs = np.array([self.nodes.named(text) for text in queries], np.int64)
        with torch.inference_mode():
            vectors = self.module.queries(torch.from_numpy(inputs).to(self.encoder.device)) * self.config.multiplier
        return {VECTOR: vectors.cpu().numpy()}

    def check_search(self, options: TaxonomySearch) -> None:
        """Require a hierarchy for ``within``."""
        if options.within is None:
            return
        if self.nodes.hierarchy is None:
            raise ConfigError(f"within={options.within!r} needs a hierarchy: this model was trained on pairs alone")
        self.nodes.hierarchy.row(options.within)

    sentences = False  # nodes are named by few words, or looked up

    def lexical_variants(self) -> dict[str, TaxonomySearch]:
        """Return no variants for lookup tables, which cannot read the texts that coefficients are learned from."""
        return super().lexical_variants() if self.accepts_embeddings else {}

    def query_input(self, texts: Sequence[str]) -> Any:
        """Texts in a hierarchy, where a bare code is read as its node's name."""
        return super().query_input(texts) if self.nodes.hierarchy is None else texts

    def default_words(self, options: TaxonomySearch) -> float | None:
        """Weight of words in a hierarchy: so little that an exact match comes first and ancestors stay."""
        return None if self.nodes.hierarchy is None else WORD_WEIGHT_OF_NODES

    def lexical_key(self, options: TaxonomySearch) -> str | None:
        """One key for all searches that rank by score alone."""
        return "" if options.cut is None and options.order == "score" else None

    def scoring_options(self, options: TaxonomySearch) -> TaxonomySearch:
        """All options of a search leave out or order documents: scores are the same without them."""
        return TaxonomySearch()

    def content_read(self, document: Document) -> str:
        """Text, and the node that a document is by its id."""
        return f"{self.nodes.rows.get(document.key, -1)} {super().content_read(document)}"

    @cached_property
    def cutoff(self) -> RelevanceCutoff:
        """Probabilities from scores."""
        return RelevanceCutoff(self.module.node_vectors, self.module.cut)

    def plan(self, queries: Queries, k: int, options: TaxonomySearch, view: View) -> SearchPlan:
        """Inner products with all documents, or with those below a node."""
        only, hierarchy = None, self.nodes.hierarchy
        if options.within is not None and hierarchy is not None:
            keys, below = view.keys(), hierarchy.descendants(hierarchy.row(options.within))
            only = keys[np.isin(node_rows(view, keys), below)]
        return SearchPlan(Score(VECTOR, queries[VECTOR]), only=only)

    def rank(self, view: View, plan: SearchPlan, candidates: Candidates, k: int, options: TaxonomySearch) -> Candidates:
        """Cut and order the candidates."""
        return rank(self.nodes, self.cutoff, view, plan, candidates, k, options)

    def explain(
        self, query: Queries, arrays: Arrays, options: TaxonomySearch, evidence: Mapping[str, Any]
    ) -> Explanation:
        """Score of the most general ancestor, and the difference that each step down adds."""
        # 1. The chain from the document's node, or none (−1), to the root: of several parents the best-scoring.
        nodes, asked = self.nodes, query[VECTOR][0]  # [d], times T
        chain = [int(np.ravel(arrays[NODE])[0])]
        scores = [float(asked @ np.asarray(arrays[VECTOR], np.float32).reshape(-1))]
        if nodes.hierarchy is not None and chain[0] >= 0:
            while len(parents := nodes.hierarchy.parents[chain[-1]]):
                near = self.cutoff.nodes[parents].cpu().numpy() @ asked  # [parents]
                chain.append(int(parents[near.argmax()]))
                scores.append(float(near.max()))
        raw = np.array([scores], np.float32)
        chances = self.cutoff.probability(asked[None], raw)[0].tolist()
        if nodes.hierarchy is not None:
            scores = self.cutoff.scaled(asked[None], raw)[0].tolist()
        names = [nodes.names[row] if row >= 0 else "this document" for row in chain]
        steps = [
            {"id": nodes.ids[row] if row >= 0 else None, "name": name, "score": score, "probability": chance}
            for row, name, score, chance in zip(chain, names, scores, chances, strict=True)
        ]
        # 2. The parts: the most general node counts in full, each step down adds a difference.
        added = [score - above for score, above in zip(scores, [*scores[1:], 0.0], strict=True)]
        parts = [Part(*part) for part in zip(names, added, steps, strict=True)][::-1]
        # 3. The text.
        short = [shorten(name, 40) for name in names]
        trail = " ▸ ".join(f"{name} ({chance:.0%})" for name, chance in zip(short, chances, strict=True))
        brief = " ▸ ".join(short) if len(short) > 1 else ""
        return Explanation(scores[0], parts, f"score {scores[0]:.2f}; {trail}", {"chain": steps}, brief=brief)

    def describe(self) -> dict[str, Any]:
        """Size and shape of the taxonomy, and width of the embeddings."""
        facts: dict[str, Any] = {"nodes": len(self.nodes)}
        if (hierarchy := self.nodes.hierarchy) is not None:
            facts |= {"edges": len(hierarchy.parents.values), "depth": int(hierarchy.depths.max())}
            facts["leaves"] = len(hierarchy.leaves())
        return facts | {"dimension": self.config.dimension}
