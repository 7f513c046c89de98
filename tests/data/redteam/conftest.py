"""These folders are data: nothing in them is a test of this project."""

collect_ignore_glob = ["*"]
