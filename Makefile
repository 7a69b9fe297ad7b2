# make [test|lint|asan|tsan|shake|fuzz|bench|clean]    V=1 shows commands; VARIANT=release|asan|tsan|shake
CC ?= cc
VARIANT ?= release
B := build/$(VARIANT)
PKGS := jansson libpcre2-8 libutf8proc
CPPFLAGS += -Iinclude -Isrc -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS += -std=c11 -g -Wall -Wextra -Werror -Wno-unused-parameter -fvisibility=hidden -ffp-contract=off -fno-math-errno -pthread -MMD -MP
LDLIBS += $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -pthread
CLI_LDLIBS := -ledit
ifeq ($(VARIANT),release)
CFLAGS += -O3 -DNDEBUG
else ifeq ($(VARIANT),asan)
CFLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(VARIANT),tsan)
CFLAGS += -O1 -fsanitize=thread
LDFLAGS += -fsanitize=thread
else ifeq ($(VARIANT),shake)
CFLAGS += -O2 -DQN_SHAKE
endif
ifneq ($(V),1)
Q := @
endif

SRC := $(shell find src -name '*.c')
LIB_SRC := $(filter-out %_test.c %_fuzz.c src/cli/%,$(SRC))
CLI_SRC := $(filter-out %_test.c %_fuzz.c,$(filter src/cli/%,$(SRC)))
TEST_SRC := $(filter %_test.c,$(SRC)) $(wildcard tests/*_test.c)
OBJ = $(patsubst %.c,$(B)/%.o,$(1))

all: $(B)/quern
	$(Q)ln -sf $(B)/quern quern

$(B)/libquern.a: $(call OBJ,$(LIB_SRC))
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/quern: $(call OBJ,$(CLI_SRC)) $(B)/libquern.a
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CLI_LDLIBS)

# The instruction sets: the suffix of a file picks its flags.
$(B)/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(B)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -mavx512vbmi -mavx2 -mfma -mf16c

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/%_test: $(B)/%_test.o $(B)/libquern.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

TESTS := $(patsubst %.c,$(B)/%,$(TEST_SRC))
test: $(TESTS) all
	$(Q)tests/run $(TESTS)

clean:
	rm -rf build quern
.PHONY: all test clean
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
