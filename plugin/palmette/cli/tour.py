"""What ``palmette`` alone says: the way from a folder of notes to answers, one command a step."""

from __future__ import annotations

from palmette.cli.parser import COMMANDS

__all__ = ["tour"]

STEPS = (
    ("See it work, on documents every machine has", ("palmette demo",)),
    (
        'Train on your own: a folder of .md and .txt files, or JSONL with a "text" per line. No labels needed',
        ("palmette train tree notes/ --out my-tree",),
    ),
    (
        "Index, and again whenever they change (only what is new is encoded)",
        ("palmette index my-tree notes/ --out my-index",),
    ),
    ("Ask, and see why", ('palmette search my-index "how do I …?" -k 5 --explain',)),
    (
        "Have it answer in the documents' own words, with no language model",
        (
            "palmette train reader notes/ --out my-reader --unit sentence",
            'palmette answer my-index "how do I …?" --reader my-reader',
        ),
    ),
    ("Measure it on questions of yours", ("palmette evaluate my-tree questions/ --baselines",)),
    ("Look inside", ("palmette inspect my-index --html tree.html",)),
    ("Use it in Python", ('Index.open("my-index").search("how do I …?")',)),
    (
        "And in LangChain and LlamaIndex",
        (
            'langchain_palmette.TreeRetriever(index_path="my-index").invoke("how do I …?")',
            'llama_index.retrievers.palmette.TreeRetriever.from_index("my-index").retrieve("how do I …?")',
        ),
    ),
)


def tour() -> str:
    """The tour, and the list of commands."""
    width = max(map(len, COMMANDS))
    steps = (f"  {title}:\n" + "".join(f"    {line}\n" for line in lines) for title, lines in STEPS)
    commands = (f"  {name.ljust(width)}  {summary}\n" for name, summary in COMMANDS.items())
    return (
        "palmette: trained hierarchical retrieval for RAG\n\n"
        f"from nothing to answers\n\n{chr(10).join(steps)}\n"
        f"commands\n\n{''.join(commands)}\n"
        "`palmette COMMAND --help` shows the options of a command, with examples."
    )
