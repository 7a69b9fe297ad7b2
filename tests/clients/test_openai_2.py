"""The tests of openai with version 2 of it, the one that llama-index takes. Its helper joins entries another way."""
from clients_help import use_llama_index

use_llama_index()

from test_openai import *
