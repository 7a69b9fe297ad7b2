"""Every test may import what is in tests/support."""
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(__file__), "support"))

# Where a card is, "auto" would take it; tests that are about that name a device.
os.environ.setdefault("QUERN_DEVICE", "cpu")
