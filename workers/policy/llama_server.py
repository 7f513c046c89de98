"""The child process of the local policy: llama.cpp's server on loopback, alive while its input is held open.

Run as a file, so it imports nothing of this project. The first line of the input is the configuration as JSON
(so that the key is in no argument list); the first line of the output the address. When the parent dies, the
kernel closes the pipe, whatever killed it, and this process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

QUIET = 1


def main() -> None:
    config = json.loads(first_line())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        server = start(config)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    print(server.listening_address, flush=True)
    threading.Event().wait()


def start(config: dict[str, Any]) -> Any:
    """Load the model and listen."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config["gguf"]
    params.n_parallel = config["parallel"]
    params.n_ctx = config["context_tokens"] * config["parallel"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config["threads"]
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [config["api_key"]]
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = params.ui = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.verbosity = QUIET
    return xllamacpp.Server(params)


def first_line() -> bytes:
    """Unbuffered: a thread that waits inside a buffered reader makes the interpreter abort when it ends."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
