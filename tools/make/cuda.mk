# The device cuda.
# CUDA=1 builds the library that the device cuda opens at run time, by nvcc (CUDA 13). Nothing else depends on it, and it
# needs the driver alone where it runs. CUDA=host compiles the same kernels for this processor (src/device/cuda/host): a
# library for tests, tens of thousands of times slower than a card.
CUDA_SRC := $(shell find src/device/cuda -name '*.cu' | sort)
CUDA_ARCHS ?= 80 89 90a 120
NVCC ?= nvcc
CUDA_FLAGS := -std=c++17 -O3 -fmad=false -Iinclude -Isrc -Xcompiler -fPIC,-fvisibility=hidden,-Wall \
	'-DQN_CUDA_CODE="$(addprefix sm_,$(CUDA_ARCHS))"' $(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$(a),code=sm_$(a)) \
	-cudart static -MD -MP
CUDA_HOST_FLAGS := $(filter-out -std=c11 -fmad% -Wno-unknown-warning-option,$(FLAGS)) -std=c++17 -x c++ -DQN_CUDA_HOST -Wno-extra -Wno-sign-compare -Wno-unused-function \
	-Wno-missing-field-initializers -Wno-maybe-uninitialized -Wno-unknown-pragmas -fno-exceptions -fno-strict-aliasing
CUDA_HOST_TESTS := $(patsubst %.cpp,$(B)/host/%,$(wildcard src/device/cuda/host/*_test.cpp))
CUDA_HOST_SRC := $(filter-out %_test.cpp,$(wildcard src/device/cuda/host/*.cpp))
ifdef CUDA
ifeq ($(CUDA),host)
CUDA_LIBRARY := $(B)/libquern-cuda-host.so
else
ifeq ($(shell command -v $(NVCC) 2>/dev/null),)
$(error CUDA=1: no $(NVCC) on PATH. Install CUDA 13's compiler (PyPI: nvidia-cuda-nvcc with nvidia-cuda-runtime and nvidia-nvvm) and name it: make CUDA=1 NVCC=/path/to/nvcc)
endif
CUDA_LIBRARY := $(B)/libquern-cuda.so
endif
endif

CUDA_OBJ := $(patsubst %,$(B)/%.o,$(CUDA_SRC))
CUDA_HOST_OBJ := $(patsubst %,$(B)/host/%.o,$(CUDA_SRC) $(CUDA_HOST_SRC))
# Not if a kernel's stack frame or spills have grown.
$(B)/libquern-cuda.so: $(CUDA_OBJ) tools/cuda_frames.py tools/make/cuda_frames.txt
	$(Q)python3 tools/cuda_frames.py $(CUDA_OBJ:=.ptxas)
	@echo "  LINK  $@"
	$(Q)$(NVCC) -shared -cudart static $(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$(a),code=sm_$(a)) -o $@ $(CUDA_OBJ)
$(CUDA_OBJ): $(B)/%.o: % Makefile tools/make/cuda.mk
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(CUDA_FLAGS) -Xptxas -v -c -o $@ $< 2>$@.ptxas || { cat $@.ptxas >&2; exit 1; }
	$(Q)grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' $@.ptxas >&2 || :
$(B)/libquern-cuda-host.so: $(CUDA_HOST_OBJ)
	@echo "  LINK  $@"
	$(Q)$(CXX) $(filter -fsanitize=%,$(CFLAGS.$(VARIANT))) $(LDFLAGS) -shared -o $@ $^ -lm
# The emulation alone.
$(CUDA_HOST_TESTS): %: %.cpp.o $(patsubst %,$(B)/host/%.o,$(CUDA_HOST_SRC))
	$(Q)$(CXX) $(filter -fsanitize=%,$(CFLAGS.$(VARIANT))) $(LDFLAGS) -o $@ $^ -lcmocka -lm -pthread
# Products of fragments are most of the time: fast with every VARIANT. Their arrays are local.
$(B)/host/src/device/cuda/host/tensor.cpp.o: CUDA_HOST_FLAGS += -O3 -fno-sanitize=all
$(CUDA_HOST_OBJ) $(CUDA_HOST_TESTS:=.cpp.o): $(B)/host/%.o: % Makefile tools/make/cuda.mk
	@mkdir -p $(@D)
	@echo "  C++   $<"
	$(Q)$(CXX) $(CUDA_HOST_FLAGS) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<
