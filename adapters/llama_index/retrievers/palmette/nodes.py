"""LlamaIndex nodes as palmette documents, and back without loss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core import schema
from llama_index.core.constants import DATA_KEY, TYPE_KEY
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from pydantic_core import PydanticSerializationError

from palmette.errors import InputError, NotFoundError, shown
from palmette.types import CITATION, PLACE, Document, Explanation
from palmette.types.values import json_value

if TYPE_CHECKING:
    from palmette import Hit, Model

PAYLOAD = "llama_index"
REF_DOC_ID = "ref_doc_id"
"""Filterable name of the document a node comes from (a node without a source is its own document)."""

PASSAGE = re.compile(r"#[1-9]\d*$")
"""End of the id of a node that is a passage of a longer one."""

_RESOURCES = ("text_resource", "image_resource", "audio_resource", "video_resource")


class ExplainedNode(NodeWithScore):
    """A scored node with the explanation of its score.

    The explanation is on the wrapper, so the node and its hash stay as they were indexed. Query and chat engines,
    fusion (which overwrites ``score`` only) and :class:`PalmetteRerank` pass it on; components that wrap nodes again
    drop it.
    """

    explanation: Explanation

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteExplainedNode"


def hash_of(node: BaseNode) -> str:
    """Return LlamaIndex's hash of a node's content."""
    return _read(node, lambda: node.hash)


def text_of(node: BaseNode, mode: MetadataMode) -> str:
    """Return a node's text, with the metadata that a mode puts before it."""
    return _read(node, lambda: node.get_content(mode))


def _read(node: BaseNode, read: Callable[[], str]) -> str:
    try:
        return read()
    except (RecursionError, RuntimeError, ValueError) as error:  # half a surrogate pair, too long an integer
        raise InputError(f"node {node.node_id!r} cannot be written as text ({error}): clean it") from error


def to_document(node: BaseNode, *, source_hash: str | None = None, mode: MetadataMode = MetadataMode.EMBED) -> Document:
    """Convert a node: its embedding text is searched, its metadata are filtered by, the whole node is kept.

    Dates, UUIDs, paths and NumPy's numbers in metadata become JSON, in the node too.
    """
    source, node_hash = node.source_node, hash_of(node)
    node = node.model_copy(update={"metadata": json_value(node.metadata)})
    origin = node.ref_doc_id or node.node_id
    if node.metadata.get(REF_DOC_ID, origin) != origin:
        raise InputError(
            f"node {node.node_id!r} has metadata {REF_DOC_ID!r} = {node.metadata[REF_DOC_ID]!r}, but its "
            f"source is {origin!r}: rename that metadata key"
        )
    try:
        dumped = _dump(node)
    except PydanticSerializationError as error:
        _ = Document(id=node.node_id, text=origin, metadata=node.metadata).digest  # names the key and the fix
        raise InputError(f"node {node.node_id!r} must hold JSON values only ({error})") from error
    payload = {
        "class": _tag(type(node)),
        "node": dumped,
        "hash": source_hash or (source.hash if source else None) or node_hash,
    }
    return Document(
        id=node.node_id,
        text=text_of(node, mode),
        metadata={**node.metadata, REF_DOC_ID: origin},
        payload={PAYLOAD: payload},
    )


def metadata_mode(model: Model) -> MetadataMode:
    """Metadata in the text that a model reads: the node's choice, or none for models that read metadata as fields."""
    return MetadataMode.NONE if model.reads_metadata else MetadataMode.EMBED


def to_node(document: Document) -> BaseNode:
    """Convert a document back to its node; documents added without LlamaIndex become text nodes."""
    payload = document.payload.get(PAYLOAD)
    if payload is None:  # its embedding text must be its text again
        return TextNode(
            id_=document.key,
            text=document.content,
            metadata=dict(document.metadata),
            excluded_embed_metadata_keys=list(document.metadata),
        )
    try:
        node: BaseNode = _class(str(payload["class"])).from_dict(payload["node"])
        return node
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, NotFoundError):
            raise
        raise InputError(f"document {shown(document.id)} holds no LlamaIndex node ({error}): index it again") from error


def read_nodes(nodes: Sequence[BaseNode] | str | Path) -> Sequence[BaseNode]:
    """Read nodes from a path; nodes are returned as they are."""
    from palmette.data import iter_documents

    if isinstance(nodes, str | Path):
        return [to_node(document) for document in iter_documents(nodes, passages=False)]
    return nodes


def passage_node(hit: Hit) -> BaseNode:
    """Node of a hit, with its citation unless its metadata have one; of a part of a node, its text.

    The id of a part ends in the number of the passage.
    """
    whole, place = to_node(hit.document), hit.passage
    added = {CITATION: str(hit.citation), PLACE: hit.citation.to_dict()}
    cited = {name: value for name, value in added.items() if name not in whole.metadata}
    unread = [name for name in cited if name == PLACE]
    if place is None or place.count == 1 or isinstance(whole, IndexNode):
        whole.metadata = {**whole.metadata, **cited}
        whole.excluded_embed_metadata_keys = [*whole.excluded_embed_metadata_keys, *cited]
        whole.excluded_llm_metadata_keys = [*whole.excluded_llm_metadata_keys, *unread]
        return whole
    source = RelatedNodeInfo(node_id=whole.ref_doc_id or whole.node_id, metadata=whole.metadata)
    beside = {NodeRelationship.PREVIOUS: place.number - 1, NodeRelationship.NEXT: place.number + 1}
    neighbours = {
        relation: RelatedNodeInfo(node_id=f"{whole.node_id}#{number + 1}")
        for relation, number in beside.items()
        if 0 <= number < place.count
    }
    metadata = {**whole.metadata, **cited}
    return TextNode(
        id_=f"{whole.node_id}#{place.number + 1}",
        text=hit.text,
        metadata=metadata,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=[*whole.excluded_llm_metadata_keys, *unread],
        relationships={NodeRelationship.SOURCE: source, **neighbours},
    )


def scored(hit: Hit, *, explain: bool) -> NodeWithScore:
    """Convert a hit; the wrapper is new, and may be changed."""
    node, score = passage_node(hit), float(hit.score)
    if isinstance(node, IndexNode) and score == 0.0:
        score = math.ulp(0.0)  # LlamaIndex reads the 0.0 of an index node as 1.0
    if explain:
        return ExplainedNode(node=node, score=score, explanation=hit.explain())
    return NodeWithScore(node=node, score=score)


def _dump(node: BaseNode) -> dict[str, Any]:
    """``to_dict`` and what it leaves out: the bytes of media, also those of an index node's node."""
    data: dict[str, Any] = node.to_dict(mode="json")
    for name in _RESOURCES:
        resource = getattr(node, name, None)
        if resource is not None and resource.data is not None:
            data[name]["data"] = resource.data.decode("ascii")  # base64 already
    if isinstance(node, IndexNode) and isinstance(node.obj, BaseNode):
        data["obj"] = {DATA_KEY: _dump(node.obj), TYPE_KEY: node.obj.get_type()}
    return data


def _subclasses(parent: Any) -> Iterator[type[BaseNode]]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)


def _tag(kind: type[BaseNode]) -> str:
    """Name of a node class; classes outside LlamaIndex with their module."""
    own = kind.__module__.startswith("llama_index.core.")
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _class(tag: str) -> type[BaseNode]:
    """Node class of a tag, among classes already imported: an index must not cause imports."""
    own = getattr(schema, tag, None)
    if isinstance(own, type) and issubclass(own, BaseNode):
        return own
    classes = [kind for kind in _subclasses(BaseNode) if _tag(kind) == tag]
    if not classes:
        raise NotFoundError(f"the index holds nodes of class {tag}, which is not defined here: import its module")
    return classes[-1]  # the latest definition, in a notebook
