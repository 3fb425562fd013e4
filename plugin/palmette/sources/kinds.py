"""Kinds of files by their names: how each is read, and which hold no text."""

from __future__ import annotations

from pathlib import Path

from palmette.sources.records import is_jsonl, separator

OFFICE = frozenset(".docx .pptx .xlsx .epub".split())
"""Suffixes that the converter reads."""
RECORDS = "records"
"""Kind of files that hold many documents."""
WITHOUT_TEXT = frozenset(
    ".7z .a .aac .ai .apk .arrow .avi .avif .bin .blend .bmp .bz2 .class .db .deb .dll .dmg .doc .dylib .egg "
    ".eot .exe .faiss .feather .flac .gif .gz .h5 .heic .ico .iso .jar .jpeg .jpg .keras .lib .lock .m4a .mkv "
    ".mov .mp3 .mp4 .msi .npy .npz .o .odp .ods .odt .ogg .onnx .otf .parquet .pb .pickle .pkl .png .ppt .psd "
    ".pt .pth .pyc .pyd .pyo .rar .rpm .safetensors .so .sqlite .sqlite3 .svg .svgz .swf .tar .tgz .tif .tiff "
    ".ttf .wasm .wav .webm .webp .whl .woff .woff2 .wmv .xz .zip .zst".split()
)
"""Suffixes of files that are never opened."""
LANGUAGES = {
    suffix: language
    for language, suffixes in {
        "bash": ".sh .bash .zsh .fish",
        "c": ".c .h",
        "clojure": ".clj .cljs .edn",
        "cpp": ".cc .cpp .cxx .hpp .hh .hxx .cu .ino",
        "csharp": ".cs",
        "dart": ".dart",
        "elixir": ".ex .exs",
        "erlang": ".erl .hrl",
        "fortran": ".f .f90 .f95",
        "go": ".go",
        "groovy": ".groovy .gradle",
        "haskell": ".hs",
        "java": ".java",
        "javascript": ".js .jsx .mjs .cjs .vue .svelte",
        "julia": ".jl",
        "kotlin": ".kt .kts",
        "lua": ".lua",
        "matlab": ".m",
        "ocaml": ".ml .mli",
        "perl": ".pl .pm",
        "php": ".php",
        "powershell": ".ps1 .psm1",
        "protobuf": ".proto",
        "python": ".py .pyi .pyw .pyx",
        "r": ".r",
        "ruby": ".rb .rake",
        "rust": ".rs",
        "scala": ".scala .sc",
        "sql": ".sql",
        "swift": ".swift",
        "typescript": ".ts .tsx .mts .cts",
        "zig": ".zig",
    }.items()
    for suffix in suffixes.split()
}
"""Suffix → language of source code."""
KINDS = {
    **{suffix: f"code:{language}" for suffix, language in LANGUAGES.items()},
    **dict.fromkeys(".md .markdown .mdown .mkd .mkdn .qmd .rmd".split(), "markdown"),
    **dict.fromkeys(".rst .rest".split(), "rst"),
    **dict.fromkeys(".html .htm .xhtml".split(), "html"),
    **dict.fromkeys(OFFICE, "office"),
    ".pdf": "pdf",
    ".mdx": "mdx",
    ".log": "text:log",
    **dict.fromkeys(".adoc .asciidoc".split(), "text:asciidoc"),
    **dict.fromkeys(".yaml .yml .json .jsonc .json5 .toml .ini .cfg .conf .properties".split(), "text:config"),
    ".ipynb": "notebook",
}
"""Suffix → kind of a file; others are read as text, unless they turn out to be none."""


def kind_of(path: Path) -> str | None:
    """Return how a file of this name is read; ``None`` where such files hold no text."""
    if is_jsonl(path) or separator(path):
        return RECORDS
    suffix = path.suffix.lower()
    return KINDS.get(suffix) or (None if suffix in WITHOUT_TEXT else "text")
