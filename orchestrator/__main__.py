"""`python -m orchestrator` is `rollcage`."""

import sys

from orchestrator.cli import main

sys.exit(main())
