"""LlamaIndex nodes as palmette documents, and back without loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, cast

from llama_index.core import schema
from llama_index.core.constants import DATA_KEY, TYPE_KEY
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, TextNode
from pydantic_core import PydanticSerializationError

from palmette.errors import InputError, NotFoundError
from palmette.types import Document, Explanation

if TYPE_CHECKING:
    from palmette.model import Model
    from palmette.types import Hit

__all__ = [
    "REF_DOC_ID",
    "ExplainedNode",
    "detach",
    "mode_of",
    "scored",
    "source_hash",
    "to_document",
    "to_node",
]

PAYLOAD = "llama_index"
REF_DOC_ID = "ref_doc_id"
"""Filterable name of the document a node comes from (a node without a source is its own document)."""

_RESOURCES = ("text_resource", "image_resource", "audio_resource", "video_resource")


class ExplainedNode(NodeWithScore):
    """A scored node that says why it was found.

    The explanation is on the wrapper, so the node and its hash stay as they were indexed. It survives all
    that hands wrappers on: query and chat engines, fusion (which overwrites ``score``, never
    ``explanation``) and :class:`PalmetteRerank`; a component that wraps nodes anew drops it.
    """

    explanation: Explanation

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteExplainedNode"


def to_document(
    node: BaseNode, *, source_hash: str | None = None, mode: MetadataMode = MetadataMode.EMBED
) -> Document:
    """A node as a document: its embedding text is searched, its metadata filtered by, all of it kept."""
    origin = node.ref_doc_id or node.node_id
    if node.metadata.get(REF_DOC_ID, origin) != origin:
        raise InputError(
            f"node {node.node_id!r} has metadata {REF_DOC_ID!r} = {node.metadata[REF_DOC_ID]!r}, but its "
            f"source is {origin!r}: rename that metadata key"
        )
    source = node.source_node
    try:
        dumped = _dump(node)
    except PydanticSerializationError as error:
        _ = Document(id=node.node_id, text=origin, metadata=node.metadata).digest  # names the key and the fix
        raise InputError(f"node {node.node_id!r} must hold JSON values only ({error})") from error
    kept = {
        "class": _tag(type(node)),
        "node": dumped,
        "hash": source_hash or (source.hash if source else None) or node.hash,
    }
    return Document(
        id=node.node_id,
        text=node.get_content(mode),
        metadata={**node.metadata, REF_DOC_ID: origin},
        payload={PAYLOAD: kept},
    )


def mode_of(model: Model) -> MetadataMode:
    """How much of a node's metadata a model finds in its text: what the node says, or none that it reads by itself."""
    return MetadataMode.NONE if model.reads_metadata else MetadataMode.EMBED


def to_node(document: Document) -> BaseNode:
    """The very node a document was made from; a text node for documents that came another way."""
    kept = document.payload.get(PAYLOAD)
    if kept is None:  # its embedding text must be its text again
        return TextNode(
            id_=document.key,
            text=document.content,
            metadata=dict(document.metadata),
            excluded_embed_metadata_keys=list(document.metadata),
        )
    return _class(kept["class"]).from_dict(kept["node"])


def source_hash(document: Document) -> str | None:
    """Hash of the LlamaIndex document a stored document comes from."""
    kept = document.payload.get(PAYLOAD)
    return None if kept is None else str(kept["hash"])


def detach(node: BaseNode, objects: MutableMapping[str, Any]) -> BaseNode:
    """Move what an index node refers to into ``objects``, unless it is a node itself and can be stored."""
    if isinstance(node, IndexNode) and node.obj is not None and not isinstance(node.obj, BaseNode):
        objects[node.index_id] = node.obj
        return node.model_copy(update={"obj": None})
    return node


def scored(hit: Hit, *, explain: bool) -> NodeWithScore:
    """A hit in a fresh wrapper, which its receiver may change."""
    node, score = to_node(hit.document), float(hit.score)
    if isinstance(node, IndexNode) and score == 0.0:
        score = math.ulp(0.0)  # LlamaIndex reads the 0.0 of an index node as 1.0
    if explain:
        return ExplainedNode(node=node, score=score, explanation=hit.explain())
    return NodeWithScore(node=node, score=score)


def _dump(node: BaseNode) -> dict[str, Any]:
    """``to_dict`` with what it leaves out: the bytes of media, also those of a node referred to."""
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
    """LlamaIndex's own classes by name, others with their module."""
    own = kind.__module__.startswith("llama_index.core.")
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _class(tag: str) -> type[BaseNode]:
    """The node class of a tag, among those defined: nothing is imported because an index says so."""
    if own := getattr(schema, tag, None):
        return cast("type[BaseNode]", own)
    found = [kind for kind in _subclasses(BaseNode) if _tag(kind) == tag]
    if not found:
        raise NotFoundError(
            f"the index holds nodes of class {tag}, which is not defined here: import its module"
        )
    return found[-1]  # the latest definition, in a notebook
