# The device mlx.
# MLX=1 builds the library that the device mlx opens at run time, against the wheel of MLX_PYTHON (on Linux mlx[cpu], on a
# Mac mlx) or Homebrew's mlx. Nothing else depends on it.
ifdef MLX
MLX_PYTHON ?= python3
MLX_PREFIX ?= $(shell $(MLX_PYTHON) -c 'import importlib.util as u; print(list(u.find_spec("mlx").submodule_search_locations)[0])' 2>/dev/null || brew --prefix mlx 2>/dev/null)
ifeq ($(wildcard $(MLX_PREFIX)/include/mlx/mlx.h),)
$(error MLX=1: no headers of MLX. pip install mlx (on Linux 'mlx[cpu]') and name its Python: make MLX=1 MLX_PYTHON=python3)
endif
MLX_LIBRARY := $(B)/libquern-mlx.so
endif


MLX_OBJ := $(patsubst %,$(B)/%.o,$(wildcard src/device/mlx/*.cpp))
$(B)/libquern-mlx.so: $(MLX_OBJ)
	@echo "  LINK  $@"
	$(Q)$(CXX) $(filter -fsanitize=%,$(CFLAGS.$(VARIANT))) $(LDFLAGS) -shared -o $@ $^ -L$(MLX_PREFIX)/lib -lmlx -Wl,-rpath,$(MLX_PREFIX)/lib
$(MLX_OBJ): $(B)/%.o: % Makefile
	@mkdir -p $(@D)
	@echo "  C++   $<"
	$(Q)$(CXX) $(subst -std=c11,-std=c++20,$(FLAGS)) -isystem $(MLX_PREFIX)/include $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<
