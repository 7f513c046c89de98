"""What a Harbor task's `environment/` says about its image, without building it.

Only a backend that builds images can use what is found here; any other refuses it by name.
"""

from __future__ import annotations

import hashlib
import posixpath
import re

COMPOSE_NAMES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_CONTINUATION = re.compile(r"\\[ \t]*\r?\n")


def image_of(kind: str, text: str) -> str:
    """`kind` and the digest of the file that describes the image: `dockerfile:…`, `compose:…`."""
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()}"


def workdir(dockerfile: str) -> str:
    """The last stage's working directory; empty where it is not set, is `/`, or depends on a variable."""
    current = ""
    for line in _CONTINUATION.sub(" ", dockerfile).splitlines():
        word, _, rest = line.strip().partition(" ")
        match word.upper():
            case "FROM":
                current = ""
            case "WORKDIR":
                current = posixpath.normpath(posixpath.join("/", current, rest.strip().strip("\"'")))
    return "" if current == "/" or "$" in current else current
