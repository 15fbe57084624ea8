"""`python -m gateway.api`: the reads process, started by the gateway."""

import logging
import os

from gateway.api.main import main

if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # threads of the Flight library may still wait for callers that do not read
