# make                the library and ./quern              make asan|tsan|shake|valgrind  tests under a checker (CONTRIBUTING.md)
# make test           unit, golden and corpus tests        make fuzz TIME=60 JOBS=2   every *_fuzz.c under libFuzzer (clang)
# make test-real      the tests with the real models       make bench                 every program in bench/
# make test-device    DEVICE=mlx: a device beside the CPU
# make coverage       lines of requests that no test runs  make soak SEEDS=30         long use, minutes
# make test-cli       the command line (pytest)            make docs                  docs/api.md, primitives.md, quern.1
# make test-clients   the server under real clients        make fixtures              the larger golden files, again
# make install        PREFIX=/usr/local; uninstall         make lint | format | clean
# V=1 shows commands, VARIANT= picks a build, CFLAGS= CPPFLAGS= LDFLAGS= LDLIBS= are added to ours
.DEFAULT_GOAL := all
CC ?= cc
VARIANT ?= release
TIME ?= 60
B := build/$(VARIANT)
, := ,
PKGS := jansson libpcre2-8 libutf8proc
MEDIA_PKGS := libpng libjpeg
SERVER_PKGS := libevent_core
CLI_PKGS := yaml-0.1 zlib
# Models by name are fetched by libcurl, which only the program links. NOHUB=1 leaves it out, and so does its absence: names of
# models that are on this machine still work then.
HUB_PKGS := $(if $(NOHUB),,$(shell pkg-config --exists libcurl 2>/dev/null && echo libcurl))
# What `quern serve --store` keeps lies in SQLite, which only the program links. NOSTORE=1 leaves it out, and so does its absence.
STORE_PKGS := $(if $(NOSTORE),,$(shell pkg-config --exists sqlite3 2>/dev/null && echo sqlite3))
# WebP is read by libwebp, which only the program links. NOWEBP=1 leaves it out, and so does its absence.
WEBP_PKGS := $(if $(NOWEBP),,$(shell pkg-config --exists libwebp 2>/dev/null && echo libwebp))
ifneq ($(V),1)
Q := @
endif
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

# What is missing is said once, with the packages that bring it, before the compiler says it less clearly.
ifneq ($(filter-out clean fixtures lint format uninstall,$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell pkg-config --exists $(PKGS) $(MEDIA_PKGS) $(SERVER_PKGS) $(CLI_PKGS) 2>/dev/null && echo yes),yes)
$(error The headers of jansson, PCRE2, utf8proc, libpng, libjpeg, libevent, libyaml and zlib are needed. On Debian: apt-get install gcc make pkg-config libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libpng-dev libjpeg62-turbo-dev libevent-dev libyaml-dev zlib1g-dev libcmocka-dev; libcurl4-openssl-dev to fetch models by name; libsqlite3-dev for quern serve --store; libwebp-dev to read WebP)
endif
endif

# What tools/test does not bring. A recipe line that ends make with one sentence.
need = $(Q)command -v $(1) >/dev/null || { echo "make $@: $(1) is needed. On Debian: apt-get install $(2)" >&2; exit 1; }

# Objects serve both libraries: -fPIC leaves the kernels' code as it is, instruction by instruction.
FLAGS := -Iinclude -Isrc -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS) $(MEDIA_PKGS) $(SERVER_PKGS) $(CLI_PKGS) $(HUB_PKGS) $(STORE_PKGS) $(WEBP_PKGS) 2>/dev/null) -std=c11 -g -Wall -Wextra -Werror \
	-Wno-unused-parameter -Wno-unknown-warning-option -Wno-format-truncation -fvisibility=hidden -fPIC -ffp-contract=off \
	-fno-math-errno -pthread -ffile-prefix-map=$(CURDIR)=. -MMD -MP
LIBS_PRIVATE := -lm -pthread
LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) $(LIBS_PRIVATE)
MEDIA_LIBS := $(shell pkg-config --libs $(MEDIA_PKGS) $(WEBP_PKGS) 2>/dev/null)
SERVER_LIBS := $(shell pkg-config --libs $(SERVER_PKGS) $(STORE_PKGS) 2>/dev/null)
HUB_LIBS := $(if $(HUB_PKGS),$(shell pkg-config --libs $(HUB_PKGS) 2>/dev/null))
CLI_LIBS := -ledit $(shell pkg-config --libs $(CLI_PKGS) 2>/dev/null) $(MEDIA_LIBS) $(SERVER_LIBS) $(HUB_LIBS)
CFLAGS.release := -O3 -DNDEBUG
# QN_EVERY_BLOCK: each block is the system's own, so that the checker sees what is read behind it or too late.
CFLAGS.asan := -O1 -g1 -DQN_EVERY_BLOCK -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS.tsan := -O1 -g1 -fsanitize=thread
CFLAGS.shake := -O3 -DNDEBUG -DQN_SHAKE
CFLAGS.fuzz := -O1 -g1 -DQN_EVERY_BLOCK -Wno-error
CFLAGS.coverage := -O1 -DNDEBUG
CFLAGS.arm64 := $(CFLAGS.release)
# What GCC guesses about uninitialized variables changes with the optimisation: it is an error in the release build alone.
FLAGS += $(CFLAGS.$(VARIANT)) $(if $(filter-out release arm64,$(VARIANT)),-Wno-error=maybe-uninitialized)
LINK = $(CC) $(filter -fsanitize=%,$(CFLAGS.$(VARIANT))) $(if $(filter coverage,$(VARIANT)),--coverage) $(LDFLAGS)
ifeq ($(VARIANT),fuzz)
CC := clang
FUZZ_MAIN := -fsanitize=fuzzer,address,undefined
INSTRUMENT := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
else
FUZZ_MAIN := $(B)/tests/replay.o
endif

SRC := $(shell find src -name '*.c' | sort)
# NOMLXLM=1 leaves out the backend that runs Python's mlx_lm.
ifdef NOMLXLM
SRC := $(filter-out src/backend/mlx_lm/%,$(SRC))
FLAGS += -DQN_WITHOUT_MLX_LM
endif
SRC := $(filter-out src/hub/net/net_$(if $(HUB_PKGS),none,curl).c,$(SRC))
SRC := $(filter-out $(if $(STORE_PKGS),src/server/archive/archive_none.c,src/server/archive/archive_sqlite%.c src/server/archive/archive_test.c src/server/stored_test.c),$(SRC))
SRC := $(filter-out $(if $(WEBP_PKGS),src/media/webp_none.c,src/media/webp.c src/media/webp_test.c src/media/webp_fuzz.c),$(SRC))
MACHINE := $(shell $(CC) -dumpmachine)
SRC := $(if $(findstring x86_64,$(MACHINE)),$(SRC),$(filter-out %_avx2.c %_avx2_vnni.c %_avx512.c %_avx512_amx.c,$(SRC)))
SRC := $(if $(or $(findstring aarch64,$(MACHINE)),$(findstring arm64,$(MACHINE))),$(SRC),$(filter-out %_neon.c %_neon_i8mm.c,$(SRC)))
# Sanitizers leave out the sets that this machine cannot run: their kernels take long to compile.
unless_has = $(shell [ ! -r /proc/cpuinfo ] || grep -qw -m1 $(1) /proc/cpuinfo || echo $(2))
ifneq ($(filter asan tsan,$(VARIANT)),)
UNRUN := $(call unless_has,avx_vnni,AVX2_VNNI) $(call unless_has,avx512_bf16,AVX512)
SRC := $(filter-out $(if $(filter AVX2_VNNI,$(UNRUN)),%_avx2_vnni.c) $(if $(filter AVX512,$(UNRUN)),%_avx512.c %_avx512_amx.c),$(SRC))
FLAGS += $(UNRUN:%=-DQN_WITHOUT_%)
endif
LIB_SRC := $(filter-out %_test.c %_fuzz.c src/cli/% src/hub/% src/media/% src/server/%,$(SRC))
MEDIA_SRC := $(filter-out %_test.c %_fuzz.c,$(filter src/media/%,$(SRC)))
SERVER_SRC := $(filter-out %_test.c %_fuzz.c,$(filter src/server/%,$(SRC)))
HUB_SRC := $(filter-out %_test.c %_fuzz.c,$(filter src/hub/%,$(SRC)))
CLI_SRC := $(filter-out %_test.c %_fuzz.c,$(filter src/cli/%,$(SRC)))
TESTS_SRC := $(shell find tests -name '*.c' | sort)
TEST_SRC := $(filter %_test.c,$(SRC) $(TESTS_SRC))
FUZZ_SRC := $(filter %_fuzz.c,$(SRC))
SUPPORT_SRC := $(filter-out %_test.c tests/replay.c,$(TESTS_SRC))
OBJ = $(patsubst %.c,$(B)/%.o,$(1))
PROGRAM = $(patsubst %.c,$(B)/%,$(1))
TESTS := $(call PROGRAM,$(TEST_SRC))
FUZZERS := $(call PROGRAM,$(FUZZ_SRC))
EXAMPLES := $(call PROGRAM,$(wildcard examples/*.c))
BENCHES := $(call PROGRAM,$(wildcard bench/*.c))

# The one place of the version is include/quern/quern.h. Before 1.0 a minor version may change the ABI.
VERSION := $(shell sed -n 's/^.define QN_VERSION_[A-Z]* //p' include/quern/quern.h | paste -sd.)
PARTS := $(subst ., ,$(VERSION))
ABI := $(if $(filter 0,$(firstword $(PARTS))),0.$(word 2,$(PARTS)),$(firstword $(PARTS)))
SHARED := $(B)/libquern.so.$(VERSION)

include tools/make/mlx.mk tools/make/cuda.mk

all: $(B)/quern $(SHARED) $(MLX_LIBRARY) $(CUDA_LIBRARY)

$(B)/libquern.a: $(call OBJ,$(LIB_SRC))
$(B)/libsupport.a: $(call OBJ,$(SUPPORT_SRC))
$(B)/%.a:
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

# Image decoding is for front ends alone: the library takes RGB and does not link what decodes. A build with libwebp and one
# without have archives of their own.
LIBMEDIA := $(B)/libmedia$(if $(WEBP_PKGS),,-nowebp).a
$(LIBMEDIA): $(call OBJ,$(MEDIA_SRC))

# So is the server, and what it listens with. A build with SQLite and one without have archives of their own.
LIBSERVER := $(B)/libserver$(if $(STORE_PKGS),,-nostore).a
$(LIBSERVER): $(call OBJ,$(SERVER_SRC))

# So is what fetches models. A build with libcurl and one without have archives of their own.
LIBHUB := $(B)/libhub$(if $(HUB_PKGS),,-none).a
$(LIBHUB): $(call OBJ,$(HUB_SRC))

# All of the command line but main, for its tests.
$(B)/libcli.a: $(call OBJ,$(filter-out src/cli/main.c,$(CLI_SRC)))

$(SHARED): $(call OBJ,$(LIB_SRC))
	@echo "  LINK  $@"
	$(Q)$(LINK) -shared -Wl,-soname,libquern.so.$(ABI) -o $@ $^ $(LIBS) $(LDLIBS)

$(B)/quern: $(call OBJ,$(CLI_SRC)) $(LIBSERVER) $(LIBHUB) $(LIBMEDIA) $(B)/libquern.a
	@echo "  LINK  $@"
	$(Q)$(LINK) -o $@ $^ $(LIBS) $(CLI_LIBS) $(LDLIBS)
	$(Q)[ $(B) != build/release ] || ln -sf $@ quern

# Files that QN_EMBED (src/base/embed.h) copies into objects: no list of includes tells.
$(B)/src/seed/seed.o: src/seed/seed.gguf
$(B)/src/backend/mlx_lm/mlx_lm_files.o: src/backend/mlx_lm/bridge.py

# The instruction sets: the suffix of a file picks its flags. Tests see the whole tree.
AVX2_FLAGS := -mavx2 -mfma -mf16c
$(B)/%_avx2.o: FLAGS += $(AVX2_FLAGS)
$(B)/%_avx2_vnni.o: FLAGS += $(AVX2_FLAGS) -mavxvnni
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -mavx512vbmi $(AVX2_FLAGS)
$(B)/%_avx512.o: FLAGS += $(AVX512_FLAGS)
$(B)/%_avx512_amx.o: FLAGS += $(AVX512_FLAGS) -mamx-tile -mamx-bf16
$(B)/%_neon.o: FLAGS += -march=armv8.2-a+dotprod
$(B)/%_neon_i8mm.o: FLAGS += -march=armv8.2-a+dotprod+i8mm
$(B)/%_test.o $(B)/%_fuzz.o $(B)/tests/%.o $(B)/bench/%.o: FLAGS += -I.
# Kernels are most of the compiler's work. A debugger would show next to none of their variables, which live in registers for
# moments: lines and calls alone are kept. ASan makes them so long that GCC takes longest over registers, loop by loop, and that
# watching for uses of locals outside of their blocks, which here are registers, takes a fifth of the tests' time.
ASAN_KERNELS := -fno-sanitize-address-use-after-scope -fira-region=one -Wno-ignored-optimization-argument
$(B)/src/device/cpu/kernels/%.o: FLAGS += -g1 $(if $(filter asan,$(VARIANT)),$(ASAN_KERNELS))
# Those of AMX, where this machine cannot run them, do without sanitizers.
$(B)/%_avx512_amx.o: FLAGS += $(if $(filter asan tsan,$(VARIANT)),$(call unless_has,amx_bf16,-fno-sanitize=all))

define COMPILE
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(FLAGS) $(INSTRUMENT) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
endef
ifeq ($(VARIANT),shake)
# Few sources have the word in them; the others' objects are the release build's, which is there (see the target).
SHAKEN := $(shell grep -rl QN_SHAKE src tests --include='*.c')
$(call OBJ,$(SHAKEN)): $(B)/%.o: %.c Makefile
	$(COMPILE)
$(B)/%.o: build/release/%.o
	@mkdir -p $(@D)
	$(Q)ln -f $< $@
else
ifeq ($(VARIANT),fuzz)
# Parsers are what is fuzzed. The objects of the folders that compute are the release build's, which is there (see the target).
$(call OBJ,$(filter $(foreach d,api array backend cache convert device engine,src/$(d)/%),$(LIB_SRC))): $(B)/%.o: build/release/%.o
	@mkdir -p $(@D)
	$(Q)ln -f $< $@
endif
$(B)/%.o: %.c Makefile
	$(COMPILE)
endif

$(B)/%_test: $(B)/%_test.o $(B)/libsupport.a $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(LDLIBS)
$(B)/src/cli/%_test: $(B)/src/cli/%_test.o $(B)/libcli.a $(LIBHUB) $(LIBSERVER) $(B)/libsupport.a $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(CLI_LIBS) $(LDLIBS)
$(B)/src/server/%_test: $(B)/src/server/%_test.o $(LIBSERVER) $(B)/libsupport.a $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(MEDIA_LIBS) $(SERVER_LIBS) $(LDLIBS)
$(B)/src/hub/%_test: $(B)/src/hub/%_test.o $(LIBHUB) $(B)/libsupport.a $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(HUB_LIBS) $(LDLIBS)
$(B)/src/media/%_test: $(B)/src/media/%_test.o $(B)/libsupport.a $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ -lcmocka $(LIBS) $(MEDIA_LIBS) $(LDLIBS)
$(filter-out $(B)/src/cli/% $(B)/src/hub/% $(B)/src/media/% $(B)/src/server/%,$(FUZZERS)): $(B)/%: $(B)/%.o $(B)/tests/replay.o $(B)/libquern.a
	$(Q)$(LINK) -o $@ $< $(FUZZ_MAIN) $(B)/libquern.a $(LIBS) $(LDLIBS)
$(filter $(B)/src/cli/%,$(FUZZERS)): $(B)/%: $(B)/%.o $(B)/tests/replay.o $(B)/libcli.a $(LIBHUB) $(LIBSERVER) $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $< $(FUZZ_MAIN) $(B)/libcli.a $(LIBHUB) $(LIBSERVER) $(LIBMEDIA) $(B)/libquern.a $(LIBS) $(CLI_LIBS) $(LDLIBS)
$(filter $(B)/src/server/%,$(FUZZERS)): $(B)/%: $(B)/%.o $(B)/tests/replay.o $(LIBSERVER) $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $< $(FUZZ_MAIN) $(LIBSERVER) $(LIBMEDIA) $(B)/libquern.a $(LIBS) $(MEDIA_LIBS) $(SERVER_LIBS) $(LDLIBS)
$(filter $(B)/src/hub/%,$(FUZZERS)): $(B)/%: $(B)/%.o $(B)/tests/replay.o $(LIBHUB) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $< $(FUZZ_MAIN) $(LIBHUB) $(B)/libquern.a $(LIBS) $(HUB_LIBS) $(LDLIBS)
$(filter $(B)/src/media/%,$(FUZZERS)): $(B)/%: $(B)/%.o $(B)/tests/replay.o $(LIBMEDIA) $(B)/libquern.a
	$(Q)$(LINK) -o $@ $< $(FUZZ_MAIN) $(LIBMEDIA) $(B)/libquern.a $(LIBS) $(MEDIA_LIBS) $(LDLIBS)
$(EXAMPLES) $(BENCHES): $(B)/%: $(B)/%.o $(B)/libquern.a
	$(Q)$(LINK) -o $@ $^ $(LIBS) $(LDLIBS)

# It looks at who holds locks, and when.
LED_HERE := pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_cond_wait pthread_cond_timedwait qn_program_run
$(B)/tests/engine/locks_test: LDFLAGS += $(addprefix -Wl$(,)--wrap=,$(LED_HERE))

# It stands for a system that cannot exchange two folders in one step.
$(B)/src/format/files/folder_writer_test: LDFLAGS += -Wl$(,)--wrap=renameat2

# Tests that compute with the real models take minutes: they have a target of their own.
REAL_TESTS := $(filter %real_test,$(TESTS))
REAL_CLI_TESTS := tests/server/test_server_real.py tests/cli/test_dpo_real.py tests/cli/test_embed_real.py
MLX_TESTS := tests/cli/test_mlx_lm_real.py tests/cli/test_mlx_device.py
# Tests of devices beside the CPU: other_* compare any device with it, cuda_* and mlx_* are about one alone, except mlx_experts_test,
# which runs MLX's types on the CPU. `make test` runs none of them.
DEVICE_TESTS := $(filter $(B)/tests/devices/other_%,$(TESTS))
MLX_DEVICE_TESTS := $(DEVICE_TESTS) $(filter-out %/mlx_experts_test,$(filter $(B)/tests/devices/mlx_%,$(TESTS)))
CUDA_DEVICE_TESTS := $(DEVICE_TESTS) $(filter $(B)/tests/devices/cuda_%,$(TESTS))
# Pictures: on the CPU in `make test`, on the device of QN_TEST_DEVICE in test-cuda and test-mlx.
SEEING_TEST := $(B)/tests/models/seeing_test
# What reads files that llama.cpp's converter makes (tools/make/peers.mk).
CONVERTED_TESTS := $(filter %/encoders_gguf_test %/families_gguf_test %/mmproj_gguf_test,$(TESTS))
PLAIN_TESTS := $(filter-out $(REAL_TESTS) $(CUDA_DEVICE_TESTS) $(MLX_DEVICE_TESTS) $(CONVERTED_TESTS),$(TESTS))
test: $(PLAIN_TESTS) $(FUZZERS) $(EXAMPLES) all
	$(Q)tests/run $(PLAIN_TESTS) $(FUZZERS) $(EXAMPLES)

# DEVICE=mlx names a device; without it every device that opens here is tested.
test-device: $(DEVICE_TESTS) all
	$(Q)$(if $(DEVICE),QN_TEST_DEVICE=$(DEVICE)) tests/run $(DEVICE_TESTS)

# The device cuda without a card: its kernels compiled for this processor (tools/make/cuda.mk). CUDA_TESTS is a pattern.
CUDA_TESTS ?= %
CUDA_TEST_SET := $(filter $(CUDA_TESTS),$(CUDA_DEVICE_TESTS) $(CUDA_HOST_TESTS) $(SEEING_TEST))
test-cuda: $(CUDA_TEST_SET) $(B)/libquern-cuda-host.so
	$(Q)QN_TEST_DEVICE=cuda QN_TEST_ROUNDS=30 QUERN_CUDA_LIBRARY=$(B)/libquern-cuda-host.so tests/run $(CUDA_TEST_SET)

test-real: $(REAL_TESTS) $(B)/examples/dpo all
	$(Q)QUERN=$(B)/quern tests/run $(REAL_TESTS) $(REAL_CLI_TESTS)

library: $(B)/libquern.a
	@:

# What `make test` is made of.
objects: $(call OBJ,$(LIB_SRC) $(MEDIA_SRC) $(SERVER_SRC) $(HUB_SRC) $(CLI_SRC) $(TEST_SRC) $(FUZZ_SRC) $(SUPPORT_SRC) tests/replay.c) $(EXAMPLES:=.o)

# Every kernel against scalar (--rounds 100: as long as one likes), and how fast it is (--speed).
kernel_check: $(B)/kernel_check
$(B)/kernel_check: $(B)/tests/kernels/kernel_check_test
	$(Q)ln -f $< $@

# Long use: minutes, with SEEDS=300 of the requests of tests/engine/fire_test.c.
SEEDS ?= 30
soak: $(B)/tests/engine/memory_test $(B)/tests/engine/soak_test $(B)/tests/engine/fire_test $(B)/src/cache/tree_model_test
	$(Q)QUERN_SOAK=1 $(B)/tests/engine/memory_test
	$(Q)QUERN_SOAK=1 $(B)/tests/engine/soak_test
	$(Q)tests/soak $(B)/tests/engine/fire_test $(SEEDS)
	$(Q)QUERN_OPS=1000000 $(B)/src/cache/tree_model_test

# tests/hashes.txt anew, after a change of the order of sums that is meant.
hashes: $(B)/tests/models/hashes_test
	$(Q)QUERN_WRITE_HASHES=1 $<

test-cli: all $(B)/libquern-cuda-host.so
	$(Q)QUERN=$(B)/quern tests/run $(filter-out $(REAL_CLI_TESTS) $(MLX_TESTS),$(wildcard tests/cli/test_*.py tests/tree/test_*.py tests/hub/test_*.py tests/server/test_*.py))

include tools/make/checkers.mk tools/make/arm64.mk tools/make/fixtures.mk tools/make/fuzz.mk tools/make/peers.mk

# Not those that measure a model file: they say what they take.
bench: $(BENCHES) $(B)/kernel_check all
	$(Q)for b in $(filter-out %/limit_share %/draw_bench %/schedule_bench %/train_bench %/embed_bench,$(BENCHES)) "$(B)/kernel_check --speed"; do echo "== $$b"; $$b || exit 1; done

# PREFIX, DESTDIR and the like: tools/install says what goes where.
INSTALL_WITH := B='$(B)' VERSION='$(VERSION)' ABI='$(ABI)' PKGS='$(PKGS)' LIBS='$(LIBS)' LIBS_PRIVATE='$(LIBS_PRIVATE)'
install: all
	$(Q)$(INSTALL_WITH) tools/install install
install-strip: all
	$(Q)$(INSTALL_WITH) STRIP=1 tools/install install
uninstall:
	$(Q)$(INSTALL_WITH) tools/install uninstall

docs: all
	$(Q)python3 tools/api_docs.py
	$(Q)python3 tools/primitive_docs.py
	$(Q)python3 tools/man_page.py $(B)/quern >$(B)/quern.1 && mv $(B)/quern.1 docs/quern.1
lint:
	$(Q)python3 tools/lint.py
format:
	$(call need,git,git)
	$(call need,clang-format,clang-format)
	$(Q)git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' '*.hpp' | xargs clang-format -i
clean:
	rm -rf build quern
.PHONY: all library objects test test-device test-cuda test-real kernel_check soak hashes test-cli bench install install-strip uninstall docs lint format clean
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
