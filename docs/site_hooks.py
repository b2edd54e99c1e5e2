"""What the documentation site takes from outside of docs/: the README as its first page, and pages beside the code.

Links between them are turned to the site's own pages; a link to a file that is no page stays as code. Example: in
limits.md, `../proofs/README.md` becomes `proofs.md`.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = {  # file of the repository: page of the site
    "README.md": "index.md",
    "rules/README.md": "rules.md",
    "proofs/README.md": "proofs.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
PICTURE = re.compile(r"(!\[[^\]]*\]\()docs/")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages from outside."""
    from mkdocs.structure.files import File

    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links turned to the site's own pages."""
    return with_links(markdown, page.file.src_uri)


def with_links(markdown: str, page: str) -> str:
    """The text of a page of the site, whose links to files of the repository lead to pages of the site."""
    home = {new: PurePosixPath(old).parent for old, new in OUTSIDE.items()}.get(page, PurePosixPath("docs"))

    def turned(found: re.Match) -> str:
        path = _joined(home, found["path"])
        if path in OUTSIDE:
            return f"[{found['text']}]({OUTSIDE[path]}{found['anchor'] or ''})"
        if path.startswith("docs/") and path.count("/") == 1:
            return f"[{found['text']}]({path.removeprefix('docs/')}{found['anchor'] or ''})"
        return f"{found['text']} (`{path}`)"

    return LINK.sub(turned, PICTURE.sub(r"\1", markdown))


def _joined(folder: PurePosixPath, path: str) -> str:
    """The path of the repository that a link in the folder leads to."""
    words: list[str] = []
    for word in (*folder.parts, *PurePosixPath(path).parts):
        if word == "..":
            words = words[:-1]
        else:
            words.append(word)
    return "/".join(words)
