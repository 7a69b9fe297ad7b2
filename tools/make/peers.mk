# Tests beside the packages that users have: they install these at the first run.
# The device mlx and the backend mlx_lm with the real packages, which are installed into a folder of their own at the first
# run (some 400 MB).
test-mlx: SHELL := bash
test-mlx:
	$(Q). tools/setup.sh; need_mlx || exit 0; $(MAKE) --no-print-directory MLX=1 MLX_PYTHON="$$QUERN_MLX" run-mlx
run-mlx: $(MLX_DEVICE_TESTS) $(SEEING_TEST) all
	$(Q)QUERN=$(B)/quern QN_TEST_DEVICE=mlx QUERN_MLX_LIBRARY='$(CURDIR)/$(MLX_LIBRARY)' tests/run $(MLX_DEVICE_TESTS) $(SEEING_TEST) $(MLX_TESTS)

# What a trainer writes, loaded by the real peft and mlx_lm, and a fine-tuning step by step beside peft's: installs them,
# some gigabytes, into build/peft.
test-peft: $(B)/src/train/files/trainable_file_test $(B)/tests/models/adapters_experts_test $(B)/tests/models/finetune_real_test all
	$(Q)python3 tools/peft_check.py $(wordlist 1,2,$^) $(B)/quern
	$(Q)$${QUERN_PYTHON:-build/peft/bin/python} tools/adapter_forms_golden.py --check $(B)/quern
	$(Q)tools/fetch-models smollm2 >/dev/null
	$(Q)python3 tools/finetune_check.py $(B)/tests/models/finetune_real_test

# The server, called by the client libraries that people use: installs them at the first run (some 900 MB).
test-clients: SHELL := bash
test-clients: all
	$(Q). tools/setup.sh; need_clients || exit 0; tools/fetch-models smollm2 >/dev/null; \
	  PYTHON="$$QUERN_CLIENTS" QUERN=$(B)/quern tests/run $(wildcard tests/clients/test_*.py)
# llama.cpp's own server tests against `quern serve`: fetches them at the first run (75 MB).
test-llama-server: SHELL := bash
test-llama-server: all
	$(Q). tools/setup.sh; need_llama_server || exit 0; tests/llama_server/run $(B)/quern
# Encoders and further families as GGUF files that llama.cpp's converter makes of the fixtures: fetches it and installs transformers at the first run
# (gigabytes).
test-encoders-gguf: SHELL := bash
test-encoders-gguf: $(CONVERTED_TESTS) $(B)/tests/models/adapters_encoders_test
	$(Q). tools/setup.sh; need_converter || exit 0; \
	  "$$QUERN_TRANSFORMERS" tools/encoder_files.py "$$QUERN_LLAMA_CPP" "$${QUERN_FIXTURES:-../shared/fixtures}" $(B)/encoders && \
	  QUERN_FIXTURES=$(B)/encoders tests/run $^

# Random walks through constraints, WALKS of each of SCHEMAS schemas: every finished text must be valid by our validator and by
# PyPI's jsonschema, which is installed at the first run.
WALKS ?= 100
SCHEMAS ?= 100
test-constrain: SHELL := bash
test-constrain: $(B)/tests/constrain/walk_test
	$(Q). tools/setup.sh; need_jsonschema || exit 0; \
	  QUERN_WALK_SEEDS=$(WALKS) QUERN_WALK_SCHEMAS=$(SCHEMAS) QUERN_WALK_OUT=$(B)/walks.jsonl $< && \
	  "$$QUERN_JSONSCHEMA" tests/constrain/check_walks.py "$${QUERN_FIXTURES:-../shared/fixtures}/json_schema/maskbench.jsonl.gz" $(B)/walks.jsonl

# Filters, integers, blocks and values of chat templates against jinja2, CASES random values for pprint among them.
test-jinja: $(B)/tests/models/jinja_more_test
	$(Q)[ -x build/jinja2/bin/python ] || { python3 -m venv build/jinja2 && build/jinja2/bin/pip install -q jinja2==3.1.6; }
	$(Q)build/jinja2/bin/python tools/jinja_more_golden.py $(B)/jinja_more.json $(CASES)
	$(Q)QUERN_JINJA_MORE=$(B)/jinja_more.json $<

# Tokenizers of every kind, trained by the packages that define them, on CASES random texts each: the same ids, pairs and text.
CASES ?= 10000
test-tokenizers: SHELL := bash
test-tokenizers: $(B)/tests/tokenizers/reference_test
	$(Q). tools/setup.sh; need_tokenizers || exit 0; rm -rf $(B)/tokenizer_kinds && \
	  "$$QUERN_TOKENIZERS" tools/tokenizer_kinds.py $(B)/tokenizer_kinds $(CASES) && QUERN_TOKENIZER_KINDS=$(B)/tokenizer_kinds $<

# Image processors on SIZES random sizes each: the same views, grids and tokens as transformers' own, which is installed at the
# first run with torch and torchvision (gigabytes). Minutes.
SIZES ?= 200
test-images: SHELL := bash
test-images: $(B)/tests/models/image_sizes_test
	$(Q). tools/setup.sh; need_transformers || exit 0; \
	  "$$QUERN_TRANSFORMERS" tools/image_sizes.py $(B)/image_sizes.json $(SIZES) && QUERN_IMAGE_SIZES=$(B)/image_sizes.json $<
# The description of the API: valid OpenAPI 3.1, and kept by the server under whatever schemathesis makes of it. Installs both at
# the first run.
test-schemathesis: SHELL := bash
test-schemathesis: all
	$(Q). tools/setup.sh; need_openapi || exit 0; PYTHON="$$QUERN_OPENAPI" QUERN=$(B)/quern tests/run tests/openapi/test_openapi.py
# Attacks that last: wrk, slowhttptest (both Debian's) and 100,000 mutated requests, with a client that must be answered throughout.
test-attack: SHELL := bash
test-attack: all
	$(Q). tools/setup.sh; need_packages wrk slowhttptest; rm -f $(B)/attack.log; \
	  QUERN=$(B)/quern QUERN_ATTACK_LOG=$(B)/attack.log tests/run tests/attack/test_attack.py; rc=$$?; cat $(B)/attack.log; exit $$rc
.PHONY: test-llama-server test-attack test-schemathesis test-images test-constrain test-tokenizers test-jinja test-mlx run-mlx test-peft test-clients
