# The tests under a checker, each in a build folder.
asan:
	$(Q)$(MAKE) --no-print-directory VARIANT=asan test
shake:
	$(Q)$(MAKE) --no-print-directory VARIANT=release objects
	$(Q)$(MAKE) --no-print-directory VARIANT=shake test

# ThreadSanitizer slows code tenfold: the programs that are about threads, or all with TSAN_TESTS=%.
TSAN_TESTS ?= %/threads_test %/ledger_test %/native_test %/limits_test %/generation_test %/scheduler_test %/probe_test \
	%/snapshot_test %/program_test %/transform_test %/fire_test %/locks_test %/inbox_test %/tree_test %/lists_company_test \
	%/finetune_test
tsan:
	$(Q)$(MAKE) --no-print-directory VARIANT=tsan test-tsan
test-tsan: $(filter $(TSAN_TESTS),$(TESTS))
	$(Q)tests/run $^

# Every line of these files runs in some test, but for those that tests/uncovered.txt excuses.
COVERED := $(filter-out %_test.c %_fuzz.c,$(foreach p,src/cache/ src/engine/clients/handle src/engine/schedule/inbox src/engine/schedule/ring \
	src/api/cache src/backend/native/native_cache src/api/tickets,$(filter $(p)%,$(SRC))))
$(if $(filter coverage,$(VARIANT)),$(call OBJ,$(COVERED)): INSTRUMENT := -O0 --coverage -fprofile-update=atomic)
COVERAGE_TESTS ?= $(B)/src/cache/% %/handles_test %/state_io_test %/inbox_test %/cache_test %/state_test
coverage:
	$(call need,gcov,gcc)
	$(Q)$(MAKE) --no-print-directory VARIANT=coverage test-coverage
test-coverage: $(filter $(COVERAGE_TESTS),$(TESTS))
	$(Q)find $(B)/src -name '*.gcda' -delete
	$(Q)tests/run $^
	$(Q)python3 tools/coverage.py $(B) $(COVERED)

# Memcheck knows no AVX-512: QUERN_CPU holds the kernels to AVX2, and an instruction beyond would end the program. It
# slows code fortyfold: parsers, text, tables, and whole models in small doses (memory_test, examples). It cannot judge
# PCRE2's machine code, so what runs many expressions is left out. Blocks begin with a header, so a pointer from a static
# variable leads inside one ("possibly lost"); a lost one is lost definitely.
VALGRIND := valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
	--show-leak-kinds=definite --fair-sched=try
VALGRIND_TESTS ?= $(foreach d,base cache cli format media model quant server text,$(B)/src/$(d)/%) %/array_test %/sampler_test \
	%/slots_test %/generation_test %/memory_test
VALGRIND_SET := $(filter-out %/pretokenize_test %/tokenizer_fuzz,$(filter $(VALGRIND_TESTS),$(TESTS)) $(FUZZERS) $(EXAMPLES))
valgrind: $(VALGRIND_SET)
	$(Q)QUERN_CPU=avx2 QUERN_KEPT_BYTES=0 QUERN_FIXTURES=tests/golden QUERN_OPS=10000 RUN_UNDER="$(VALGRIND)" tests/run $^
.PHONY: asan shake tsan test-tsan coverage test-coverage valgrind
