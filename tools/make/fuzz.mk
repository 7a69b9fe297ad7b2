# Fuzz targets under libFuzzer.
# What reaches new code stays in build/fuzz/corpus, what breaks a target in build/fuzz/finds; what is worth keeping is copied to
# tests/corpus by hand. FUZZ_TARGETS="http gguf" names some of them, JOBS says how many run at a time (all cores).
fuzz:
	$(call need,clang,clang libclang-rt-dev)
	$(Q)$(MAKE) --no-print-directory VARIANT=release library
	$(Q)$(MAKE) --no-print-directory VARIANT=fuzz run-fuzz
FUZZ_TARGETS ?= $(patsubst %_fuzz,%,$(notdir $(FUZZERS)))
FUZZED := $(foreach n,$(FUZZ_TARGETS),$(or $(filter %/$(n)_fuzz,$(FUZZERS)),no-fuzz-target-$(n)))
run-fuzz: $(FUZZED)
	$(Q)TIME=$(TIME) JOBS=$(JOBS) SEED=$(SEED) tests/fuzz $(B) $^
no-fuzz-target-%:
	@echo "make fuzz: no target $*. There are: $(patsubst %_fuzz,%,$(notdir $(FUZZERS)))" >&2; exit 1
.PHONY: fuzz run-fuzz
