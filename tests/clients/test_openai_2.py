"""The tests of openai with version 2 of it, the one that llama-index takes. Its helper joins entries another way."""
from clients_help import use_openai_2

use_openai_2()

from test_openai import *
