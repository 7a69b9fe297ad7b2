# The tests under a checker, each in a build folder.
asan:
	$(Q)$(MAKE) --no-print-directory VARIANT=asan test
# The device cuda over the emulation of a card: the tests that end in minutes.
CUDA_ASAN_TESTS ?= $(foreach t,numbers primitives state weights,%/other_$(t)_test) %/emulate_test
asan-cuda:
	$(Q)$(MAKE) --no-print-directory VARIANT=asan CUDA_TESTS="$(CUDA_ASAN_TESTS)" test-cuda
shake:
	$(Q)$(MAKE) --no-print-directory VARIANT=release objects
	$(Q)$(MAKE) --no-print-directory VARIANT=shake test

# ThreadSanitizer slows code tenfold: the programs that are about threads, or all with TSAN_TESTS=%.
TSAN_TESTS ?= %/threads_test %/ledger_test %/native_test %/limits_test %/generation_test %/scheduler_test %/probe_test \
	%/snapshot_test %/program_test %/transform_test %/fire_test %/locks_test %/inbox_test %/tree_test %/lists_company_test \
	%/finetune_steps_test
tsan:
	$(Q)$(MAKE) --no-print-directory VARIANT=tsan test-tsan
test-tsan: $(filter $(TSAN_TESTS),$(TESTS))
	$(Q)tests/run $^

# Every line of these files runs in some test, but for those that tests/uncovered.txt excuses: the path of a request, and
# training's functions. They alone are instrumented; the other objects are the release build's, which is there (see the target).
COVERED := $(filter-out %_test.c %_fuzz.c,$(foreach p,src/engine/ src/cache/ src/api/ src/server/core/ src/server/route_prompt_cache \
	src/backend/native/native_cache src/train/function/finetune src/train/step/trainable_bind src/train/step/update \
	src/train/step/base src/device/cpu/attention/ragged src/model/forward/blocks/attend,$(filter $(p)%,$(SRC))))
ifeq ($(VARIANT),coverage)
$(call OBJ,$(COVERED)): INSTRUMENT := -O0 --coverage -fprofile-update=atomic
$(filter-out $(call OBJ,$(COVERED)),$(call OBJ,$(SRC) $(TESTS_SRC))): $(B)/%.o: build/release/%.o
	@mkdir -p $(@D)
	$(Q)ln -f $< $@
endif
# Tests of kernels, parsers and tables reach none of them. A server that SIGTERM stops writes its counts.
COVERAGE_TESTS ?= $(filter-out $(foreach d,src/base src/format src/quant src/media src/prim src/text src/device/cpu/kernels \
	tests/kernels tests/devices tests/primitives tests/hostile,$(B)/$(d)/%),$(PLAIN_TESTS))
COVERAGE_SCRIPTS ?= $(foreach t,api faults files history hostile http look_ahead ping start store tools,tests/server/test_server_$(t).py) \
	$(foreach t,bench device doctor models pack,tests/cli/test_cli_$(t).py)
coverage:
	$(call need,gcov,gcc)
	$(Q)$(MAKE) --no-print-directory VARIANT=release objects build/release/libquern-cuda-host.so
	$(Q)QUERN_CUDA_HOST=build/release/libquern-cuda-host.so $(MAKE) --no-print-directory VARIANT=coverage test-coverage
test-coverage: $(COVERAGE_TESTS) $(B)/quern
	$(Q)find $(B)/src -name '*.gcda' -delete
	$(Q)QUERN=$(B)/quern tests/run $(COVERAGE_TESTS) $(COVERAGE_SCRIPTS)
	$(Q)python3 tools/coverage.py $(B) $(COVERED)

# Memcheck knows no AVX-512: QUERN_CPU holds the kernels to AVX2, and an instruction beyond would end the program. It
# slows code fortyfold: parsers, text, tables, and whole models in small doses (memory_test, examples). It cannot judge
# PCRE2's machine code, so what runs many expressions is left out. Blocks begin with a header, so a pointer from a static
# variable leads inside one ("possibly lost"); a lost one is lost definitely.
VALGRIND := valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
	--show-leak-kinds=definite --fair-sched=try
VALGRIND_TESTS ?= $(foreach d,base cache cli format hub media model quant server text,$(B)/src/$(d)/%) %/array_test %/sampler_test \
	%/slots_test %/generation_test %/memory_test
VALGRIND_SET := $(filter-out %/pretokenize_test %/tokenizer_fuzz,$(filter $(VALGRIND_TESTS),$(TESTS)) $(FUZZERS) $(EXAMPLES))
valgrind: $(VALGRIND_SET)
	$(Q)QUERN_CPU=avx2 QUERN_KEPT_BYTES=0 QUERN_FIXTURES=tests/golden QUERN_OPS=10000 RUN_UNDER="$(VALGRIND)" tests/run $^
.PHONY: asan asan-cuda shake tsan test-tsan coverage test-coverage valgrind
